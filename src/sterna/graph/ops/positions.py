"""Learned positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["PositionsOp"]


@dataclass(eq=False, kw_only=True)
class PositionsOp(Op):
    """x + a row of the table [positions, width]: `first` is the row of position 0."""

    kind: ClassVar[str] = "positions"
    x: Value
    table: F32
    first: int = 0

    @property
    def reused(self) -> Value:
        return self.x
