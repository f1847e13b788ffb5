"""Arcee (AFM): Llama's graph with an FFN without a gate.

x = x + o(attention(rope(q, k), v));   x = x + down(relu(up)^2)
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import ATTENTION, READS, UNGATED, GgufArchitecture
from sterna.models.options import LLAMA_NORMS, Norms

ARCHITECTURES = ("ArceeForCausalLM",)
ACTIVATION = "relu2"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"hidden_size": 2560, "intermediate_size": 18432, "hidden_act": ACTIVATION}
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "attention_bias": False}
    | {"mlp_bias": False}
)
GGUF = {
    "arcee": GgufArchitecture(
        ARCHITECTURES[0], ACTIVATION, {**ATTENTION, **UNGATED, **READS}, permuted=True
    )
}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return write(m, LLAMA_NORMS)


def write(m: ModelBuilder, norms: Norms) -> Value:
    """Add the layers, with these norms."""
    return llama.build(m, norms=norms, ffn=_ffn)


def _ffn(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
    return m.ungated(h, x, f"{name}.up_proj", f"{name}.down_proj", bias=m.config.mlp_bias)
