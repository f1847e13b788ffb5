"""Granite with experts and one that all tokens use.

x = x + r o(attention(rope(q, k), v));   x = x + r (experts(norm(x)) + shared(norm(x)))
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import granite, granitemoe, layers, llama
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("GraniteMoeSharedForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS: dict[str, Any] = {**granitemoe.DEFAULTS, "shared_intermediate_size": 0}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    experts = granitemoe.experts(g, c, w)
    if c.fields.config["shared_intermediate_size"] == 0:
        return granite.build(g, c, w, experts)
    width, factor = (
        c.fields.count("shared_intermediate_size"),
        c.fields.factor("residual_multiplier"),
    )

    def ffn(h: Value, x: Value, layer: int, name: str) -> Value:
        x = experts(h, x, layer, name)
        name = f"model.layers.{layer}.shared_mlp"
        stored = f"{name}.input_linear"
        parts = [Linear(f"{name}.{part}_proj", width, c.hidden_size) for part in ("gate", "up")]
        if w.has(stored):  # GGUF files have gate and up apart
            parts = [Linear(stored, 2 * width, c.hidden_size)]
        h = g.glu(layers.linear(g, c, w, h, stored, parts), c.activation, f"{name}.act")
        return layers.output(g, c, w, h, x, f"{name}.output_linear", factor=factor)

    return granite.build(g, c, w, ffn)
