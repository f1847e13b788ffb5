"""Activations of FFNs without a gate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["ActivationOp"]


@dataclass(eq=False, kw_only=True)
class ActivationOp(Op):
    """act(x): "relu", "relu2", "silu", "gelu" or "gelu_pytorch_tanh"."""

    kind: ClassVar[str] = "activation"
    x: Value
    activation: str
