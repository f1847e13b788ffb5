"""Activations that `RowwiseOp` does not have: those of poolers and of few FFNs without a gate."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["ActivationOp"]


@dataclass(eq=False, kw_only=True)
class ActivationOp(Op):
    """act(x): "relu", "tanh", "quick_gelu", "clip" or "xielu".

    parameters: "clip" has the least and the most value, "xielu" alpha_p, alpha_n, beta and eps.
    """

    kind: ClassVar[str] = "activation"
    x: Value
    activation: str
    parameters: tuple[float, ...] = field(default=(), metadata=LATER)
