"""LFM2 and LFM2.5, text only: short convolutions in most layers, attention in the others.
arXiv 2511.23404.

    x = x + out_proj(C * conv(B * h)), with [B | C | h] = in_proj(x),   or
    x = x + out_proj(attention(rope(norm(q), norm(k)), v));
    x = x + w2(silu(w1) * w3)

Each sublayer reads RMSNorm(x). The convolution reads the last conv_L_cache tokens of each channel.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.graph.ops import ShortConvOp
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config import FULL
from sterna.models.config_defaults import COMMON, without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import AttentionOptions, QKNorm
from sterna.models.qwen3_5 import MAX_TAPS, MIXERS
from sterna.weights.sources import Linear

ARCHITECTURES = ("Lfm2ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    without(COMMON, "hidden_act")
    | {"vocab_size": 65536, "hidden_size": 2560, "intermediate_size": 12288}
    | {"num_key_value_heads": 8, "max_position_embeddings": 128000, "rope_theta": 1e6}
    | {"tie_word_embeddings": True, "norm_eps": 1e-5, "conv_bias": False, "conv_L_cache": 3}
    | {"block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True}
)
GGUF = {
    "lfm2": GgufArchitecture(
        ARCHITECTURES[0],
        modules={
            "operator_norm": "attn_norm",
            "ffn_norm": "ffn_norm",
            "conv.conv": "shortconv.conv",
            "conv.in_proj": "shortconv.in_proj",
            "conv.out_proj": "shortconv.out_proj",
            "self_attn.q_proj": "attn_q",
            "self_attn.k_proj": "attn_k",
            "self_attn.v_proj": "attn_v",
            "self_attn.out_proj": "attn_output",
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "feed_forward.w1": "ffn_gate",
            "feed_forward.w2": "ffn_down",
            "feed_forward.w3": "ffn_up",
        },
        keys={"shortconv.l_cache": "conv_L_cache"},
        renamed={"rms_norm_eps": "norm_eps"},
        outer={"model.norm": "token_embd_norm"},
        varied=True,
    )
}
PREFIXES = {"model.embedding_norm.": "model.norm."}
CONV = "conv"  # in layer_types: a layer with a convolution


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms, the width of FFNs and the kind of each layer."""
    return {
        "rms_norm_eps": f.number("norm_eps"),
        "tie_word_embeddings": f.flag(
            "tie_embedding" if "tie_embedding" in f.config else "tie_word_embeddings"
        ),
        "intermediate_size": _ffn_width(f),
        "layer_types": None,
        MIXERS: mixers(f),
    }


def _ffn_width(f: Fields) -> int:
    """Return the width of an FFN: two thirds of the field, times a factor, rounded up."""
    width = f.count("block_ff_dim", f.count("intermediate_size"))
    if not f.flag("block_auto_adjust_ff_dim"):
        return width
    width, multiple = int(2 * width / 3), f.count("block_multiple_of")
    if f.config["block_ffn_dim_multiplier"] is None:
        return width
    width = int(f.factor("block_ffn_dim_multiplier") * width)
    return -(-width // multiple) * multiple


def mixers(f: Fields) -> list[str]:
    """Return the kind of each layer, FULL or CONV; without layer_types, full_attn_idxs says it."""
    kinds = f.items("layer_types", f.n_layers, (CONV, FULL))
    if kinds is None:
        listed = f.config.get("full_attn_idxs")
        full = range(f.n_layers) if listed is None else listed
        if not isinstance(full, list | range) or not all(type(i) is int for i in full):
            f.fail("full_attn_idxs", "a list of layers' numbers", full)
        kinds = [FULL if i in full else CONV for i in range(f.n_layers)]
    if FULL not in kinds:
        f.fail("layer_types", f"at least one {FULL}", CONV)
    return kinds


def build(m: ModelBuilder, ffn: FeedForward | None = None) -> Value:
    """Add the model's layers; return the logits. ffn: replaces `feed_forward`."""
    norms = QKNorm(names=("q_layernorm", "k_layernorm"))
    attention = AttentionOptions(qk_norm=norms)
    x, ffn = m.embedding(), ffn or feed_forward
    for i, mixer in enumerate(m.config.fields.config[MIXERS]):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.operator_norm")
        if mixer == FULL:
            h = m.attention(h, i, f"{p}.self_attn", attention)
            x = m.output(h, x, f"{p}.self_attn.out_proj")
        else:
            x = short_conv(m, h, x, f"{p}.conv")
        h = m.norm(x, f"{p}.ffn_norm")
        x = ffn(m, h, x, i, f"{p}.feed_forward")
    return m.head(x)


def short_conv(m: ModelBuilder, h: Value, x: Value, name: str) -> Value:
    """x + out_proj(C * conv(B * h)) of h's projection [B | C | h]."""
    d, bias = m.config.hidden_size, m.config.fields.flag("conv_bias")
    h = m.linear(h, f"{name}.in_proj", 3 * d, bias=bias)
    width = m.config.fields.count("conv_L_cache", most=MAX_TAPS)
    taps = m.taps(f"{name}.conv", d, width)
    added = m.weights.vector(f"{name}.conv.bias", d) if bias else None
    h = m.add(ShortConvOp(name=f"{name}.conv", x=h, taps=taps, bias=added))
    return m.output(h, x, f"{name}.out_proj", bias=bias)


def feed_forward(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
    """x + w2(silu(w1) * w3) of h."""
    width = m.config.intermediate_size
    parts = [Linear(f"{name}.{n}", width, h.width) for n in ("w1", "w3")]
    gate_up, _ = m.merged_linear(h, f"{name}.w1_w3", parts)
    return m.output(m.glu(gate_up, f"{name}.act"), x, f"{name}.w2")
