"""The gated delta rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32, RecurrentHeads
from sterna.graph.ops.base import Op, Value

__all__ = ["RecurrenceOp"]


@dataclass(eq=False, kw_only=True)
class RecurrenceOp(Op):
    """The gated delta rule over a row [q | k | v], with gates at the columns `a` and `b`."""

    kind: ClassVar[str] = "recurrence"
    x: Value
    heads: RecurrentHeads
    a: int
    b: int
    rate: F32
    bias: F32
