"""Granite with experts and one that all tokens use.

x = x + r o(attention(rope(q, k), v));   x = x + r (experts(norm(x)) + shared(norm(x)))
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import granite, granitemoe, moe
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.config_fields import Fields
from sterna.weights.sources import Linear

ARCHITECTURES = ("GraniteMoeSharedForCausalLM",)
DEFAULTS: dict[str, Any] = granitemoe.DEFAULTS | {"shared_intermediate_size": 0}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return granite.build(m, ffn(m.config.fields))


def ffn(f: Fields) -> FeedForward:
    """Return an FFN sublayer: experts, a shared one, or both."""
    experts = granitemoe.experts(f) if moe.optional_count(f, "num_experts") else None
    width, factor = f.count("shared_intermediate_size", least=0), f.factor("residual_multiplier")

    def add(m: ModelBuilder, h: Value, x: Value, layer: int, name: str) -> Value:
        x = experts(m, h, x, layer, name) if experts else x
        if not width:
            return x
        shared = f"model.layers.{layer}.shared_mlp"
        stored = f"{shared}.input_linear"
        parts = [Linear(f"{shared}.{part}_proj", width, h.width) for part in ("gate", "up")]
        if m.weights.has(stored):  # GGUF files have gate and up apart, and without experts an FFN
            parts = [Linear(stored, 2 * width, h.width)]
        elif not experts:
            return m.with_config(intermediate_size=width).feed_forward(h, x, name, factor=factor)
        gate_up, _ = m.merged_linear(h, stored, parts)
        h = m.glu(gate_up, f"{shared}.act")
        return m.output(h, x, f"{shared}.output_linear", factor=factor)

    return add
