"""Parts of a pair of texts, which a cross-encoder tells apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["PartsOp"]


@dataclass(eq=False, kw_only=True)
class PartsOp(Op):
    """x + row 0 of the table [1 or more, width], or row 1 in the second part of a pair
    (`StepInput.second_part`)."""

    kind: ClassVar[str] = "parts"
    x: Value
    table: F32

    @property
    def reused(self) -> Value:
        return self.x
