"""Projectors that families share."""

from __future__ import annotations

from sterna.graph import Value
from sterna.models.builder import ModelBuilder

__all__ = ["two_layers"]


def two_layers(m: ModelBuilder, x: Value, width: int, bias: bool) -> Value:
    """linear_2(gelu(linear_1(x))) to the text's width, by LLaVA's names."""
    one, two = (f"multi_modal_projector.linear_{i}" for i in (1, 2))
    x = m.linear(x, one, width, bias=bias)
    x = m.graph.activation(x, "gelu", f"{one}.act")
    return m.linear(x, two, width, bias=bias)
