"""GLM-4, its first checkpoints (glm-4-9b-*-hf, glm-edge): Llama's graph with biases of q, k and v,
gate and up stored as one matrix, and half of each head rotated, neighbours together.
arXiv 2406.12793.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.options import LLAMA_NORMS, AttentionOptions, Norms
from sterna.models.rope import partly_rotated

ARCHITECTURES = ("GlmForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 151552, "intermediate_size": 13696, "num_hidden_layers": 40}
    | {"num_key_value_heads": 2, "head_dim": 128, "max_position_embeddings": 131072}
    | {"rms_norm_eps": 1.5625e-7, "attention_bias": True, "partial_rotary_factor": 0.5}
)
QKV_BIAS = "qkv_bias"  # a field of ours: attention_bias, which leaves out that of o here


def complete(f: Fields) -> dict[str, Any]:
    """Return the part of a head that is rotated, and which layers have biases."""
    return {
        **partly_rotated(f),
        "rope_interleaved": True,
        QKV_BIAS: f.flag("attention_bias"),
        "attention_bias": False,
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return write(m, LLAMA_NORMS)


def write(m: ModelBuilder, norms: Norms) -> Value:
    """Add the layers, with norms of these names."""
    bias = m.config.fields.flag(QKV_BIAS)
    attention = AttentionOptions(bias=bias)
    return llama.build(m, norms=norms, attention=attention, fused_gate_up=True)
