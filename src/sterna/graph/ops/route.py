"""The experts of each token."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, SOFTMAX, Scoring
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["RouteOp"]


@dataclass(eq=False, kw_only=True)
class RouteOp(Op):
    """Chooses experts by their logits x; the output has their shares.

    of_all: shares are the scores as they are. factors: a factor of each expert's shares.
    """

    kind: ClassVar[str] = "route"
    x: Value
    experts: int
    chosen: int
    of_all: bool = False
    factors: F32 | None = None
    scoring: Scoring = field(default=SOFTMAX, metadata=LATER)

    def own_output(self) -> Value:
        return Value(self.chosen)
