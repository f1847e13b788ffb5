"""Zamba2: Mamba-2 in all layers, and in front of some an attention block that several layers share.
arXiv 2411.15242.

    t = block([x | e]),   e the token's embedding;   x = x + mamba(norm(x + linear(t)))
    block(y) = ffn(norm(o(attention(q, k, v))))   of norm(y)

A layer without a block has no t. Each use of a block adds a low-rank product of its own to q, k and
v, where the config says so, and to gate and up. Limits of Mamba-2's steps are as in `nemotron_h`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from sterna.formats import PackedWeight
from sterna.graph import GraphBuilder, Piece, Value
from sterna.models import layers, mamba2
from sterna.models.config import MAX_HEAD_DIM, TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.qwen3_5 import LINEAR, MIXERS
from sterna.weights.sources import Linear, WeightSource
from sterna.weights.wrapped import WrappedWeights

ARCHITECTURES = ("Zamba2ForCausalLM",)
ACTIVATION = "gelu"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **COMMON, **mamba2.DEFAULTS, "hidden_size": 2560, "intermediate_size": 10240,
    "num_hidden_layers": 54, "num_key_value_heads": None, "hidden_act": ACTIVATION,
    "rms_norm_eps": 1e-5, "max_position_embeddings": 4096, "tie_word_embeddings": True,
    "mamba_n_heads": 8, "mamba_d_state": 64, "num_mem_blocks": 1, "adapter_rank": 128,
    "use_shared_attention_adapter": False, "use_mem_rope": False, "use_long_context": False,
}  # fmt: skip
del DEFAULTS["time_step_limit"]
ALIASES = {
    "n_mamba_heads": "mamba_n_heads", "mamba_ngroups": "mamba_n_groups",
    "mamba_headdim": "mamba_d_head", "add_bias_linear": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias", "attention_head_dim": "head_dim",
}  # fmt: skip
PREFIXES = {"model.final_layernorm.": "model.norm."}
HYBRID = "hybrid"
_KINDS = {LINEAR: LINEAR, "mamba": LINEAR, HYBRID: HYBRID}
_MAMBA_EPS = 1e-5  # of the norm within Mamba-2, whatever `rms_norm_eps` says


def complete(f: Fields) -> dict[str, Any]:
    """Return the kind of each layer, and the heads of blocks, whose rows are twice as wide."""
    f.supported("use_long_context", f.flag("use_long_context"), False)
    hidden, heads = f.count("hidden_size"), f.count("num_attention_heads")
    if 2 * hidden % heads:
        f.fail("num_attention_heads", f"a divisor of twice hidden_size={hidden}", heads)
    return {
        "intermediate_size": f.count("intermediate_size", 4 * hidden),
        "head_dim": f.count("head_dim", 2 * hidden // heads, MAX_HEAD_DIM),
        "time_step_limit": f.config.get("time_step_limit"),
        "mamba_conv_bias": True,  # whatever `use_conv_bias` says
        "no_rope_layers": [int(f.flag("use_mem_rope"))] * f.n_layers, "layer_types": None,
        MIXERS: _kinds(f), "mlp_bias": f.flag("mamba_proj_bias"),
    }  # fmt: skip


def _kinds(f: Fields) -> list[str]:
    """Return the kind of each layer, LINEAR or HYBRID; some are hybrid."""
    field, many = "layers_block_type", [LINEAR] * 5
    default = [LINEAR, *[*many, HYBRID] * 7, *many[:4], HYBRID, *many[:3], HYBRID, *many[:2]]
    given = default if f.config.get(field) is None else f.config[field]
    listed = f.having({**f.config, field: given}).items(field, f.n_layers, tuple(_KINDS)) or []
    if HYBRID not in listed:
        f.fail(field, f"at least one {HYBRID}", LINEAR)
    return [_KINDS[kind] for kind in listed]


@dataclass(frozen=True)
class _Shared(WrappedWeights):
    """Hands out each matrix as one object, however often it is asked for."""

    made: dict[str, list[PackedWeight]] = field(default_factory=dict, repr=False)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        if name not in self.made:
            self.made[name] = self.source.matrix(name, parts)
        return self.made[name]


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    f, w = c.fields, _Shared(w)
    space = mamba2.StateSpace.of(f, f.count("mamba_expand") * c.hidden_size)
    kinds, of_mamba = f.config[MIXERS], replace(c, rms_norm_eps=_MAMBA_EPS)
    hybrids = [i for i, kind in enumerate(kinds) if kind == HYBRID]
    blocks = f.count("num_mem_blocks", most=len(hybrids))
    x, table = layers.embedding(g, c, w)
    embedded = g.place(c.hidden_size, [(x, Piece(c.hidden_size))], "embed_tokens")
    for i, kind in enumerate(kinds):
        p, h = f"model.layers.{i}", x
        if kind == HYBRID:
            use = hybrids.index(i)
            block = f"model.layers.{hybrids[use % blocks]}.shared_transformer"
            h = _block(g, c, w, g.concatenate([x, embedded]), i, use, block)
            h = layers.output(g, c, w, h, x, f"{p}.linear")
            p = f"{p}.mamba_decoder"
        h = layers.norm(g, c, w, h, f"{p}.input_layernorm")
        x = mamba2.layer(g, of_mamba, w, h, x, f"{p}.mamba", space)
    return layers.head(g, c, w, x, table)


def _block(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, layer: int, use: int,
    name: str,
) -> Value:  # fmt: skip
    """Write a block of attention and an FFN without residuals; use: how many uses came before."""
    wide = replace(c, hidden_size=x.width)
    h = layers.norm(g, c, w, x, f"{name}.input_layernorm")
    h = _attention(g, wide, w, h, layer, use, f"{name}.self_attn")
    h = layers.output(g, c, w, h, None, f"{name}.self_attn.o_proj")
    h = layers.norm(g, c, w, h, f"{name}.pre_ff_layernorm")
    ffn, rows = f"{name}.feed_forward", 2 * c.intermediate_size
    both = layers.gate_up(g, c, w, h, ffn, stored_fused=True)
    both = _low_rank(g, c, w, h, f"{ffn}.gate_up_proj_adapter_list.{use}", rows, both)
    h = g.glu(both, c.activation, f"{ffn}.act")
    return layers.output(g, c, w, h, None, f"{ffn}.down_proj", bias=c.mlp_bias)


def _low_rank(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, name: str, M: int,
    residual: Value | None = None,
) -> Value:  # fmt: skip
    """Write a low-rank product of M rows (+ residual)."""
    rank = c.fields.count("adapter_rank")
    down, up = Linear(f"{name}.0", rank, h.width), Linear(f"{name}.1", M, rank)
    low = layers.linear(g, c, w, h, down.name, [down])
    return layers.linear(g, c, w, low, up.name, [up], residual=residual)


def _attention(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, layer: int, use: int,
    name: str,
) -> Value:  # fmt: skip
    """Write attention up to the projection back, which has scores over the root of half a head."""
    r = c.heads
    counts = {"q": r.n_heads, "k": r.n_kv_heads, "v": r.n_kv_heads}
    parts = [Linear(f"{name}.{n}_proj", m * r.head_dim, h.width) for n, m in counts.items()]
    qkv, columns = layers.linear_parts(g, c, w, h, f"{name}.qkv_proj", parts)
    if c.fields.flag("use_shared_attention_adapter"):
        added = list[tuple[Value, Piece]]()
        for n, part, column in zip(counts, parts, columns, strict=True):
            row = _low_rank(g, c, w, h, f"{name}.linear_{n}_adapter_list.{use}", part.M)
            added.append((row, Piece(part.M, column=column)))
        qkv = g.add(qkv, g.place(qkv.width, added, f"{name}.adapters"), f"{name}.adapters")
    how = replace(c.attention[layer], scale=(r.head_dim / 2) ** -0.5)
    return g.attention(qkv, layer, how)
