"""A guess of the experts that the next layer will choose."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, SOFTMAX, Scoring
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["GuessOp"]


@dataclass(eq=False, kw_only=True)
class GuessOp(Op):
    """Chooses experts as the next `RouteOp` would by logits x, and tells the cache of weights on
    disk; its output is x itself. The fields are those of that operation."""

    kind: ClassVar[str] = "guess"
    x: Value
    experts: int
    chosen: int
    of_all: bool = False
    factors: F32 | None = None
    scoring: Scoring = field(default=SOFTMAX, metadata=LATER)
