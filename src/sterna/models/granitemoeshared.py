"""Granite with experts and one that all tokens use.

x = x + r o(attention(rope(q, k), v));   x = x + r (experts(norm(x)) + shared(norm(x)))
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import granite, granitemoe, layers, llama, moe
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

ARCHITECTURES = ("GraniteMoeSharedForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS: dict[str, Any] = {**granitemoe.DEFAULTS, "shared_intermediate_size": 0}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return granite.build(g, c, w, feed_forward(g, c, w))


def feed_forward(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> llama.FeedForward:
    """Return the second half of a layer: experts and a shared one, or either of them alone."""
    given = moe.given(c.fields, "num_experts")
    experts = granitemoe.experts(g, c, w) if given else None
    shared = _shared(g, c, w) if c.fields.config["shared_intermediate_size"] != 0 else None

    def ffn(h: Value, x: Value, layer: int, name: str) -> Value:
        for half in (experts, shared):
            x = half(h, x, layer, name) if half else x
        return x

    return ffn


def _shared(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> llama.FeedForward:
    width, factor = (
        c.fields.count("shared_intermediate_size"),
        c.fields.factor("residual_multiplier"),
    )

    alone = not moe.given(c.fields, "num_experts")

    def ffn(h: Value, x: Value, layer: int, name: str) -> Value:
        module, name = name, f"model.layers.{layer}.shared_mlp"
        stored = f"{name}.input_linear"
        parts = [Linear(f"{name}.{part}_proj", width, c.hidden_size) for part in ("gate", "up")]
        if w.has(stored):  # GGUF files have gate and up apart, and without experts an FFN
            parts = [Linear(stored, 2 * width, c.hidden_size)]
        elif alone:
            dense = replace(c, intermediate_size=width)
            return llama.feed_forward(g, dense, w, h, x, module, factor=factor)
        h = g.glu(layers.linear(g, c, w, h, stored, parts), c.activation, f"{name}.act")
        return layers.output(g, c, w, h, x, f"{name}.output_linear", factor=factor)

    return ffn
