"""The experts of each token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["RouteOp"]


@dataclass(eq=False, kw_only=True)
class RouteOp(Op):
    """Chooses experts by their logits x; the output has their shares.

    of_all: shares add up to 1 over all experts. factors: of each expert's shares.
    """

    kind: ClassVar[str] = "route"
    x: Value
    experts: int
    chosen: int
    of_all: bool = False
    factors: F32 | None = None
