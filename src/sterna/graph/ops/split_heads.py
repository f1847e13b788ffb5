"""Reorders rows in which q, k and v of one head follow each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["SplitHeadsOp"]


@dataclass(eq=False, kw_only=True)
class SplitHeadsOp(Op):
    """Columns that have all parts of a head together, such as [q | k | v], as a part of all heads
    after another. first: how many of the other parts the first one is as wide as.
    """

    kind: ClassVar[str] = "split_heads"
    x: Value
    n_heads: int
    parts: int
    first: int = field(default=1, metadata=LATER)
