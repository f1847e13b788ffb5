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
from sterna.graph import Piece, Value
from sterna.graph.ops import RowwiseOp
from sterna.models import mamba2
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_defaults import COMMON, without
from sterna.models.config_fields import Fields
from sterna.models.qwen3_5 import LINEAR, MIXERS
from sterna.weights.sources import Linear
from sterna.weights.wrapped import WrappedWeights

ARCHITECTURES = ("Zamba2ForCausalLM",)
ACTIVATION = "gelu"
DEFAULTS: dict[str, Any] = (
    COMMON
    | without(mamba2.DEFAULTS, "time_step_limit")
    | {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 54}
    | {"num_key_value_heads": None, "hidden_act": ACTIVATION, "rms_norm_eps": 1e-5}
    | {"max_position_embeddings": 4096, "tie_word_embeddings": True, "mamba_n_heads": 8}
    | {"mamba_d_state": 64, "num_mem_blocks": 1, "adapter_rank": 128}
    | {"use_shared_attention_adapter": False, "use_mem_rope": False, "use_long_context": False}
)
ALIASES = {
    "n_mamba_heads": "mamba_n_heads",
    "mamba_ngroups": "mamba_n_groups",
    "mamba_headdim": "mamba_d_head",
    "add_bias_linear": "mamba_proj_bias",
    "use_conv_bias": "mamba_conv_bias",
    "attention_head_dim": "head_dim",
}
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
        "no_rope_layers": [int(f.flag("use_mem_rope"))] * f.n_layers,
        "layer_types": None,
        MIXERS: _kinds(f),
        "mlp_bias": f.flag("mamba_proj_bias"),
    }


def _kinds(f: Fields) -> list[str]:
    """Return the kind of each layer, LINEAR or HYBRID; some are hybrid."""
    field, many = "layers_block_type", [LINEAR] * 5
    default = [LINEAR, *[*many, HYBRID] * 7, *many[:4], HYBRID, *many[:3], HYBRID, *many[:2]]
    types = default if f.config.get(field) is None else f.config[field]
    listed = f.having({**f.config, field: types}).items(field, f.n_layers, tuple(_KINDS)) or []
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


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    m = replace(m, weights=_Shared(m.weights))
    c, f = m.config, m.config.fields
    space = mamba2.StateSpace.of(f, f.count("mamba_expand") * c.hidden_size)
    kinds, of_mamba = f.config[MIXERS], m.with_config(rms_norm_eps=_MAMBA_EPS)
    hybrids = [i for i, kind in enumerate(kinds) if kind == HYBRID]
    blocks = f.count("num_mem_blocks", most=len(hybrids))
    x = m.embedding()
    embedded = m.graph.columns(x, c.hidden_size, "embed_tokens")
    for i, kind in enumerate(kinds):
        p, h = f"model.layers.{i}", x
        if kind == HYBRID:
            use = hybrids.index(i)
            block = f"model.layers.{hybrids[use % blocks]}.shared_transformer"
            h = _block(m, m.graph.concatenate([x, embedded]), i, use, block)
            h = m.output(h, x, f"{p}.linear")
            p = f"{p}.mamba_decoder"
        h = m.norm(h, f"{p}.input_layernorm")
        x = mamba2.layer(of_mamba, h, x, f"{p}.mamba", space)
    return m.head(x)


def _block(m: ModelBuilder, x: Value, layer: int, use: int, name: str) -> Value:
    """Add a block of attention and an FFN without residuals; use: how many uses came before."""
    wide = m.with_config(hidden_size=x.width)
    h = m.norm(x, f"{name}.input_layernorm")
    h = _attention(wide, h, layer, use, f"{name}.self_attn")
    h = m.output(h, None, f"{name}.self_attn.o_proj")
    h = m.norm(h, f"{name}.pre_ff_layernorm")
    ffn, rows = f"{name}.feed_forward", 2 * m.config.intermediate_size
    both = m.gate_up(h, ffn, fused=True)
    both = _low_rank(m, h, f"{ffn}.gate_up_proj_adapter_list.{use}", rows, both)
    h = m.glu(both, f"{ffn}.act")
    return m.output(h, None, f"{ffn}.down_proj", bias=m.config.mlp_bias)


def _low_rank(
    m: ModelBuilder, h: Value, name: str, width: int, residual: Value | None = None
) -> Value:
    """Add a low-rank product of this width (+ residual)."""
    rank = m.config.fields.count("adapter_rank")
    return m.linear(m.linear(h, f"{name}.0", rank), f"{name}.1", width, residual=residual)


def _attention(m: ModelBuilder, h: Value, layer: int, use: int, name: str) -> Value:
    """Attention up to the output projection, with scores over the root of half a head."""
    r = m.config.heads
    counts = {"q": r.n_heads, "k": r.n_kv_heads, "v": r.n_kv_heads}
    widths = {part: count * r.head_dim for part, count in counts.items()}
    parts = [Linear(f"{name}.{part}_proj", width, h.width) for part, width in widths.items()]
    qkv, columns = m.merged_linear(h, f"{name}.qkv_proj", parts)
    if m.config.fields.flag("use_shared_attention_adapter"):
        added = list[tuple[Value, Piece]]()
        for (part, width), column in zip(widths.items(), columns, strict=True):
            row = _low_rank(m, h, f"{name}.linear_{part}_adapter_list.{use}", width)
            added.append((row, Piece(width, column=column)))
        name = f"{name}.adapters"
        qkv = m.add(RowwiseOp(name=name, x=qkv, residual=m.graph.place(qkv.width, added, name)))
    attention = replace(m.config.attention[layer], scale=(r.head_dim / 2) ** -0.5)
    return m.graph.attention(qkv, layer, attention)
