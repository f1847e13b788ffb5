"""Weights as they are, float [M, K]: the storage of layers that no other one recognises."""

from __future__ import annotations

from sterna.weights.storages.base import Floats, Layer


def recognises(layer: Layer) -> bool:
    """Return True; `read` refuses other dtypes by name."""
    return True


def read(layer: Layer) -> Floats:
    """Read the weights."""
    return layer.weight
