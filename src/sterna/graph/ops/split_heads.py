"""Rows whose heads stand one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["SplitHeadsOp"]


@dataclass(eq=False, kw_only=True)
class SplitHeadsOp(Op):
    """Columns that have all parts of a head together, such as [q | k | v], as a part of all heads
    after another."""

    kind: ClassVar[str] = "split_heads"
    x: Value
    n_heads: int
    parts: int
