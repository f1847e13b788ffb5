"""Reorders rows in which q, k and v of one head follow each other."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["SplitHeadsOp"]


@dataclass(eq=False, kw_only=True)
class SplitHeadsOp(Op):
    """Reorders columns [q | k | v] of each head in turn to [q of all | k of all | v of all].

    parts: how many parts a head has. first: so many queries come in one head, before its k.
    """

    kind: ClassVar[str] = "split_heads"
    x: Value
    n_heads: int
    parts: int
    first: int = field(default=1, metadata=LATER)
