"""Arcee (AFM): Llama's graph with an FFN without a gate.

x = x + o(attention(rope(q, k), v));   x = x + down(relu(up)^2)
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import layers, llama
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import ATTENTION, READS, UNGATED, GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("ArceeForCausalLM",)
ACTIVATION = "relu2"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **COMMON, "hidden_size": 2560, "intermediate_size": 18432, "hidden_act": ACTIVATION,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "attention_bias": False,
    "mlp_bias": False,
}  # fmt: skip
GGUF = {
    "arcee": GgufArchitecture(
        ARCHITECTURES[0], ACTIVATION, {**ATTENTION, **UNGATED, **READS}, permuted=True
    )
}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return write(g, c, w, layers.LLAMA_NORMS)


def write(g: GraphBuilder, c: TransformerConfig, w: WeightSource, norms: layers.Norms) -> Value:
    """Write the layers, with these norms."""

    def ffn(h: Value, x: Value, _: int, name: str) -> Value:
        names = f"{name}.up_proj", f"{name}.down_proj"
        return layers.ungated(g, c, w, h, x, names, ACTIVATION, bias=c.mlp_bias)

    return llama.build(g, c, w, norms=norms, ffn=ffn)
