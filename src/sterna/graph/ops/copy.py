"""Rows as columns of wider rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["CopyOp"]


@dataclass(eq=False, kw_only=True)
class CopyOp(Op):
    """Pieces of x, or if it is None the previous hidden state of each token, from a column on.

    Piece i has `width` columns, those of x if it is None. It begins at begin + i * stride, and goes
    to column + i * to_stride. Where either value has rows of heads, piece i is in head i's row.
    """

    kind: ClassVar[str] = "copy"
    x: Value | None
    column: int = 0
    pieces: int = field(default=1, metadata=LATER)
    width: int | None = field(default=None, metadata=LATER)
    begin: int = field(default=0, metadata=LATER)
    stride: int = field(default=0, metadata=LATER)
    to_stride: int = field(default=0, metadata=LATER)
