"""Weights as they are: float [M, K]. What no other storage recognises."""

from __future__ import annotations

from sterna.weights.storages.base import Floats, Layer


def recognises(layer: Layer) -> bool:
    """Always: `read` names a dtype that it is not."""
    return True


def read(layer: Layer) -> Floats:
    """The weights."""
    return layer.weight
