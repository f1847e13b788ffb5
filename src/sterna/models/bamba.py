"""Bamba: Mamba-2 in most layers, attention with half of each head rotated in the others.

x = x + mamba(norm(x)),   or   x = x + o(attention(q, k, v));   x = x + ffn(norm(x))
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import mamba2
from sterna.models.builder import ModelBuilder
from sterna.models.config import FULL, MAX_HEAD_DIM
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.options import AttentionOptions
from sterna.models.qwen3_5 import LINEAR, MIXERS
from sterna.models.rope import rotated_part

ARCHITECTURES = ("BambaForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | mamba2.DEFAULTS
    | {"vocab_size": 128000, "intermediate_size": 14336, "num_key_value_heads": 8}
    | {"rms_norm_eps": 1e-5, "max_position_embeddings": 262144, "attention_bias": False}
    | {"mlp_bias": False, "partial_rotary_factor": 0.5, "attn_layer_indices": None}
)
PREFIXES = {"model.final_layernorm.": "model.norm."}


def complete(f: Fields) -> dict[str, Any]:
    """Return the kind of each layer, and how much of a head is rotated."""
    head_dim = f.count("hidden_size") // f.count("num_attention_heads")
    rotary_dim, rope = rotated_part(
        f, f.mapping("rope_parameters"), f.count("head_dim", head_dim, MAX_HEAD_DIM)
    )
    return {
        "layer_types": None,
        MIXERS: _kinds(f),
        "rope_parameters": rope,
        "rotary_dim": rotary_dim,
        "partial_rotary_factor": None,
    }


def _kinds(f: Fields) -> list[str]:
    """Return the kind of each layer, from a list of kinds or of the layers that attend."""
    attending, n = f.config["attn_layer_indices"], f.n_layers
    if attending is None and f.config.get("layer_types") is not None:
        return mamba2.mixers(f)
    listed = attending if isinstance(attending, list) else []
    if not listed or not all(type(i) is int and 0 <= i < n for i in listed):
        f.fail("attn_layer_indices", f"at least one number below {n}", attending)
    return [FULL if i in listed else LINEAR for i in range(n)]


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    c = m.config
    f = c.fields
    space = mamba2.StateSpace.of(f, f.count("mamba_expand") * c.hidden_size)
    attention = AttentionOptions(bias=c.attention_bias)
    x = m.embedding()
    for i, mixer in enumerate(f.config[MIXERS]):
        p = f"model.layers.{i}"
        h = m.norm(x, f"{p}.input_layernorm")
        if mixer == FULL:
            h = m.attention(h, i, f"{p}.self_attn", attention)
            x = m.output(h, x, f"{p}.self_attn.o_proj", bias=c.attention_bias)
        else:
            x = mamba2.layer(m, h, x, f"{p}.mamba", space)
        h = m.norm(x, f"{p}.pre_ff_layernorm")
        x = m.feed_forward(h, x, f"{p}.feed_forward")
    return m.head(x)
