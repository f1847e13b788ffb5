"""Jais 2: LayerNorms, biases everywhere, and an FFN without a gate.

x = x + o(attention(rope(q, k), v));   x = x + down(relu(up)^2)
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import arcee
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import ATTENTION, READS, UNGATED, GgufArchitecture
from sterna.models.options import Norms

ARCHITECTURES = ("Jais2ForCausalLM",)
ACTIVATION = "relu2"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 150272, "hidden_size": 3328, "intermediate_size": 26624}
    | {"num_attention_heads": 26, "hidden_act": ACTIVATION, "max_position_embeddings": 8192}
    | {"rms_norm_eps": 1e-5, "attention_bias": True, "mlp_bias": True}
)
ALIASES = {"layer_norm_eps": "rms_norm_eps"}
GGUF = {
    "jais2": GgufArchitecture(
        ARCHITECTURES[0],
        ACTIVATION,
        {**ATTENTION, **UNGATED, **READS},
        layer_norm=True,
        biases=("output_norm",),
    )
}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return arcee.write(m, Norms(layer_norm=True))
