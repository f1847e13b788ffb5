"""Projectors that families share."""

from __future__ import annotations

from sterna.graph import GraphBuilder, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

__all__ = ["two_layers"]


def two_layers(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, width: int, bias: bool
) -> Value:
    """linear_2(gelu(linear_1(x))) to the text's width, by LLaVA's names."""
    one, two = (f"multi_modal_projector.linear_{i}" for i in (1, 2))
    x = layers.linear(g, c, w, x, one, [Linear(one, width, x.width, bias)])
    x = g.activation(x, "gelu", f"{one}.act")
    return layers.linear(g, c, w, x, two, [Linear(two, width, width, bias)])
