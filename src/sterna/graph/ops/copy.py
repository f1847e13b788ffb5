"""Rows as columns of wider rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["CopyOp"]


@dataclass(eq=False, kw_only=True)
class CopyOp(Op):
    """x, or if it is None the previous hidden state of each token, from a column on."""

    kind: ClassVar[str] = "copy"
    x: Value | None
    column: int = 0
