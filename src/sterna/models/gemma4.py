"""Gemma 4: Gemma 3's graph with other heads in layers without a window, keys that
several layers share, and rows of a second embedding for each layer.

    x = x + norm(o(attention(rope(norm(q), norm(k)), norm(v))))
    x = x + norm(down(gelu(gate) * up))
    x = (x + norm(projection(gelu(gate(x)) * rows))) * layer_scalar

Each sublayer reads RMSNorm(x), and norms multiply by their weight; scores are not scaled. The last
num_kv_shared_layers layers have no keys and values of their own: they read the last layer of their
kind that has some. For each token and layer, rows = (norm(projection(x_0)) + embedding) / sqrt(2).
Models without rows (hidden_size_per_layer_input 0) skip the third line, but for its factor. Models
with experts add norm(experts(norm(x))) to norm(FFN's result); each norm has its own weight.

An image's tokens have the padding token's second embedding. In the large models they see each other
in layers with a window.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from sterna.graph import Heads, Value
from sterna.graph.ops import EmbedOp
from sterna.models import gemma2, moe
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, MAX_HEAD_DIM, SLIDING, TransformerConfig
from sterna.models.config_defaults import COMMON, without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import QK_NORMS, SOFT_CAPS, SWA_BASE, GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.rope import rotations_of
from sterna.models.vision import gemma4 as vision
from sterna.models.vision.tower import Tower
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    without(COMMON, "rope_theta")
    | {"rms_norm_eps": 1e-6, "attention_bias": False, "vocab_size": 262144, "hidden_size": 2304}
    | {"intermediate_size": 9216, "num_hidden_layers": 30, "num_attention_heads": 8}
    | {"num_key_value_heads": 4, "head_dim": 256, "global_head_dim": 512, "hidden_act": ACTIVATION}
    | {"max_position_embeddings": 131072, "tie_word_embeddings": True, "sliding_window": 512}
    | {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144}
    | {"num_kv_shared_layers": 0, "attention_k_eq_v": False, "enable_moe_block": False}
    | {"use_double_wide_mlp": False, "final_logit_softcapping": None}
)
_DENSE = GgufArchitecture(
    ARCHITECTURES[0],
    ACTIVATION,
    gemma2.GGUF["gemma2"].modules
    | QK_NORMS
    | {"layer_scalar": "layer_output_scale", "per_layer_input_gate": "inp_gate"}
    | {"per_layer_projection": "proj", "post_per_layer_input_norm": "post_norm"},
    reads=(*SOFT_CAPS, SWA_BASE),
    outer={
        "model.embed_tokens_per_layer": "per_layer_token_embd",
        "model.per_layer_model_projection": "per_layer_model_proj",
        "model.per_layer_projection_norm": "per_layer_proj_norm",
    },
    varied=True,
)
GGUF = {"gemma4": _DENSE}
GGUF_WITH_EXPERTS = {
    "gemma4": replace(
        _DENSE,
        modules=_DENSE.modules
        | {"router.proj": "ffn_gate_inp", "experts.gate_proj": "ffn_gate_exps"}
        | {"experts.up_proj": "ffn_up_exps", "experts.gate_up_proj": "ffn_gate_up_exps"}
        | {"experts.down_proj": "ffn_down_exps"}
        | {"pre_feedforward_layernorm_2": "pre_ffw_norm_2"}
        | {"post_feedforward_layernorm_1": "post_ffw_norm_1"}
        | {"post_feedforward_layernorm_2": "post_ffw_norm_2"},
        arrays={
            "router.scale": "ffn_gate_inp.scale",
            "router.per_expert_scale": "ffn_down_exps.scale",
        },
        experts="moe_intermediate_size",
    )
}
ALIASES = {"top_k_experts": "num_experts_per_tok"}
#: Prefixes of tensor names in a checkpoint with towers -> in one without.
PREFIXES = {
    "model.language_model.": "model.",
    "model.vision_tower.": "vision_tower.",
    "model.embed_vision.": "embed_vision.",
}
TOWER = vision.TOWER
#: Prefixes of tensors that are not the text model's -> their descriptions.
SKIPPED = {
    "model.vision_tower.": "a vision tower: Sterna runs only the text",
    "model.embed_vision.": "of a vision tower: Sterna runs only the text",
    "model.audio_tower.": "an audio tower: Sterna runs only the text",
    "model.embed_audio.": "of an audio tower: Sterna runs only the text",
}
ROTATIONS: dict[str, dict[str, Any]] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10000.0},
    FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
}
ROW_WIDTH = "hidden_size_per_layer_input"
TOGETHER = "images_together"  # a field of ours: whether an image's tokens see each other
KV_HEADS, HEAD_DIM = "full_kv_heads", "full_head_dim"  # fields of ours, of layers without a window


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, its layers' kinds, and the heads and rotations of each."""
    text = f.mapping("text_config")
    t = f.having({**f.config, **text})
    if t.config.get("use_bidirectional_attention") not in (None, "vision"):  # that of images
        t.supported("use_bidirectional_attention", t.config["use_bidirectional_attention"], None)
    kinds = t.items("layer_types", t.n_layers, (SLIDING, FULL))
    kinds = kinds or [FULL if (i + 1) % 6 == 0 else SLIDING for i in range(t.n_layers)]
    kinds[-1] = FULL  # as transformers has it, whatever the file says
    kv_heads, head_dim = _full_heads(t, kinds)
    _check(t, kinds, kv_heads)
    rotations = rotations_of(t, ROTATIONS)
    rotations[FULL]["rotary_dim"] = head_dim
    return {
        **text,
        TOGETHER: t.config.get("use_bidirectional_attention") == "vision",
        "layer_types": kinds,
        "rope_parameters": rotations,
        "use_bidirectional_attention": None,
        "tie_word_embeddings": f.flag("tie_word_embeddings") or t.flag("tie_word_embeddings"),
        KV_HEADS: kv_heads,
        HEAD_DIM: head_dim,
    }


def _full_heads(t: Fields, kinds: list[str]) -> tuple[int, int]:
    """KV heads and head_dim of layers without a window.

    Published files have one field for all; files saved by transformers since 5.24, one for each.
    """
    each = t.mapping("per_layer_config")
    if not each:
        named = "num_global_key_value_heads" if t.flag("attention_k_eq_v") else ""
        kv_heads = t.count(named, t.count("num_key_value_heads"))
        return kv_heads, t.count("global_head_dim", most=MAX_HEAD_DIM)
    each = {name.lstrip("0") or "0": value for name, value in each.items()}  # "05" of 12 layers
    full = {str(i) for i, kind in enumerate(kinds) if kind == FULL}
    if each.keys() != full or any(value != each[min(full)] for value in each.values()):
        rule = f"one entry, the same, for each of the layers {', '.join(sorted(full))}"
        t.fail("per_layer_config", rule, ", ".join(sorted(each)))
    entry = t.having(t.having(each).mapping(min(full)))
    known = {"head_dim", "num_key_value_heads"}
    if entry.config.keys() - known:
        t.fail("per_layer_config", f"of {' and '.join(sorted(known))} alone", [*entry.config])
    return (
        entry.count("num_key_value_heads", t.count("num_key_value_heads")),
        entry.count("head_dim", t.count("head_dim"), MAX_HEAD_DIM),
    )


def _check(t: Fields, kinds: list[str], kv_heads: int) -> None:
    """Check that the fields of shared keys and of rows fit the others."""
    for name in ("enable_moe_block", "use_double_wide_mlp"):  # `build` reads them
        t.flag(name)
    heads, first_shared = t.count("num_attention_heads"), t.n_layers - shared_layers(t)
    if heads % kv_heads:
        rule = f"a divisor of num_attention_heads={heads}"
        t.fail("num_global_key_value_heads", rule, kv_heads)
    if not {*kinds[first_shared:]} <= {*kinds[:first_shared]}:
        rule = "fewer than all layers of a kind, as the last ones read the keys of others"
        t.fail("num_kv_shared_layers", rule, t.n_layers - first_shared)
    if _positive(t, ROW_WIDTH):
        if t.count(ROW_WIDTH) % 16:
            t.fail(ROW_WIDTH, "a multiple of 16", t.count(ROW_WIDTH))
        name = "vocab_size_per_layer_input"
        t.supported(name, t.count(name, t.count("vocab_size")), t.count("vocab_size"))


def unread(c: TransformerConfig) -> set[str]:
    """Return modules without effect: keys of layers that read another layer's."""
    names = ("k_proj", "v_proj", "k_norm", "v_norm")
    shared = range(c.n_layers - shared_layers(c.fields), c.n_layers)
    return {f"model.layers.{i}.self_attn.{name}" for i in shared for name in names}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    f = c.fields
    kinds: list[str] = f.config["layer_types"]
    heads = {SLIDING: c.heads, FULL: Heads(c.n_heads, f.count(KV_HEADS), f.count(HEAD_DIM))}
    k_eq_v, first_shared = f.flag("attention_k_eq_v"), c.n_layers - shared_layers(f)
    wide, experts = f.flag("use_double_wide_mlp"), None
    if f.flag("enable_moe_block"):
        experts = moe.ExpertFields.of(f, "moe_intermediate_size")
    x = m.embedding(c.hidden_size**0.5)
    added = rows(m, x)
    keys: dict[str, Value] = {}  # for each kind, the keys of the last layer that stores some
    options = AttentionOptions(bias=c.attention_bias, qk_norm=QKNorm(), v_norm=True, scale=1.0)
    for i, kind in enumerate(kinds):
        p, shared = f"model.layers.{i}", i >= first_shared
        here = _causal(m) if kind == FULL else m
        h = m.norm(x, f"{p}.input_layernorm")
        own = replace(options, keys_are_values=k_eq_v and kind == FULL and not shared)
        keys_of, name = keys[kind] if shared else None, f"{p}.self_attn"
        h = here.attention(h, i, name, own, heads=heads[kind], keys_of=keys_of)
        if not shared:
            keys[kind] = h
        norm = f"{p}.post_attention_layernorm"
        x = m.output(h, x, f"{name}.o_proj", bias=c.attention_bias, norm_name=norm)
        h = m.norm(x, f"{p}.pre_feedforward_layernorm")
        ffn = m.with_config(intermediate_size=c.intermediate_size * (2 if wide and shared else 1))
        scalar = float(m.weights.vector(f"{p}.layer_scalar", 1)[0])
        h = m.glu(ffn.gate_up(h, f"{p}.mlp"), f"{p}.mlp.act")
        h = m.linear(h, f"{p}.mlp.down_proj", c.hidden_size)
        if experts is not None:
            h = _with_experts(m, x, h, p, experts)
        name = f"{p}.post_feedforward_layernorm"
        x = m.norm(h, name, residual=x, factor=scalar if added is None else 1.0)
        if added is not None:
            x = _add_row(m, x, added, i, scalar)
    return m.head(x, cap=f.cap("final_logit_softcapping"))


def shared_layers(f: Fields) -> int:
    """Count the last layers that have no keys and values of their own."""
    return moe.optional_count(f, "num_kv_shared_layers", f.n_layers)


def _positive(f: Fields, name: str) -> bool:
    """Whether a count is present and not 0."""
    return f.config.get(name) not in (None, 0)


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of images and its projector."""
    return vision.tower(c, w, c.fields.flag(TOGETHER))


def _causal(m: ModelBuilder) -> ModelBuilder:
    """Return a builder of layers in which an image's tokens do not see each other."""
    if not (m.config.sees and m.config.fields.flag(TOGETHER)):
        return m
    return m.with_config(attention=tuple(replace(a, causal=True) for a in m.config.attention))


def rows(m: ModelBuilder, x: Value) -> Value | None:
    """Add the rows that layers add for each token, of all layers side by side."""
    c = m.config
    if not _positive(c.fields, ROW_WIDTH):
        return None
    each, root_half = c.fields.count(ROW_WIDTH), 0.5**0.5
    width = c.n_layers * each
    vocab = c.fields.count("vocab_size_per_layer_input", c.vocab_size)
    table = m.weights.table("model.embed_tokens_per_layer", vocab, width)
    pad = c.fields.count("pad_token_id", 0, vocab - 1, least=0) if c.sees else -1
    embedded = m.add(
        EmbedOp(
            weight=table,
            factor=each**0.5 * root_half,
            first_for_rest=vocab < c.vocab_size,
            image_token=pad,
        )
    )
    name = "model.per_layer_model_projection"
    projected = m.linear(x, name, width, factor=c.hidden_size**-0.5)
    name = "model.per_layer_projection_norm"
    weight = m.norm_weight(name, each) * np.float32(root_half)
    return m.graph.norm(projected, weight, c.rms_norm_eps, name, residual=embedded)


def _add_row(m: ModelBuilder, x: Value, rows: Value, layer: int, factor: float) -> Value:
    """Return (x + norm(projection(gelu(gate(x)) * row))) * factor."""
    h = gated_row(m, x, rows, layer)
    name = f"model.layers.{layer}.post_per_layer_input_norm"
    return m.norm(h, name, residual=x, factor=factor)


def gated_row(m: ModelBuilder, x: Value, rows: Value, layer: int) -> Value:
    """Return projection(gelu(gate(x)) * row)."""
    c = m.config
    p, each = f"model.layers.{layer}", rows.width // c.n_layers
    h = m.linear(x, f"{p}.per_layer_input_gate", each)
    act = f"{p}.per_layer_input_act"
    h = m.graph.glu(h, c.activation, act, up=(rows, layer * each))
    return m.linear(h, f"{p}.per_layer_projection", c.hidden_size)


def _with_experts(
    m: ModelBuilder, x: Value, ffn: Value, p: str, experts: moe.ExpertFields
) -> Value:
    """norm(ffn) + norm(experts(norm(x))); the router has a norm of its own."""
    c = m.config
    root = np.float32(c.hidden_size**-0.5)
    scale = m.weights.vector(f"{p}.router.scale", c.hidden_size) * root
    h = m.graph.norm(x, scale, c.rms_norm_eps, f"{p}.router.norm")
    router = f"{p}.router.proj"
    logits = m.linear(h, router, experts.count, exact=True)
    factors = m.weights.vector(f"{p}.router.per_expert_scale", experts.count)
    route = m.graph.route(logits, experts.count, experts.chosen, router, factors=factors)
    h = m.norm(x, f"{p}.pre_feedforward_layernorm_2")
    h = moe.combined(m, h, None, route, p, experts)
    ffn = m.norm(ffn, f"{p}.post_feedforward_layernorm_1")
    return m.norm(h, f"{p}.post_feedforward_layernorm_2", residual=ffn)
