"""Nemotron without experts or recurrent layers (Nemotron-4, Minitron): LayerNorms, which store the
difference from 1, and an FFN without a gate. arXiv 2402.16819.

    x = x + o(attention(rope(q, k), v));   x = x + down(relu(up)^2)

A part of each head is rotated.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import arcee
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import ATTENTION, READS, UNGATED, GgufArchitecture
from sterna.models.options import Norms
from sterna.models.rope import partly_rotated

ARCHITECTURES = ("NemotronForCausalLM",)
ACTIVATION = "relu2"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 256000, "hidden_size": 6144, "intermediate_size": 24576}
    | {"num_attention_heads": 48, "head_dim": 128, "hidden_act": ACTIVATION}
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "attention_bias": False}
    | {"mlp_bias": False, "partial_rotary_factor": 0.5}
)
ALIASES = {"norm_eps": "rms_norm_eps"}
GGUF = {
    "nemotron": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {**ATTENTION, **UNGATED, **READS},
        partial=True,
        sums=True,
        layer_norm=True,
        biases=("output_norm",),
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the part of a head that is rotated."""
    return partly_rotated(f)


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return arcee.write(m, Norms(layer_norm=True, plus_one=True))
