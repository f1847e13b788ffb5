"""Columns times factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["ScaleOp"]


@dataclass(eq=False, kw_only=True)
class ScaleOp(Op):
    """Each column of x times a factor of its own, in place."""

    kind: ClassVar[str] = "scale"
    x: Value
    factors: F32

    @property
    def reused(self) -> Value | None:
        return self.x

    @property
    def in_place(self) -> bool:
        return True
