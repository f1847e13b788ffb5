"""Weights as they are: float [M, K]. It takes layers that no other storage recognises."""

from __future__ import annotations

from sterna.weights.storages.base import Floats, Layer


def recognises(layer: Layer) -> bool:
    """Always true; `read` refuses other dtypes by name."""
    return True


def read(layer: Layer) -> Floats:
    """The weights."""
    return layer.weight
