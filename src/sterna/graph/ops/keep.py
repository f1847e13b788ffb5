"""Values that outlast a run of a part of a program."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["KeepOp"]


@dataclass(eq=False, kw_only=True)
class KeepOp(Op):
    """Saves the first `width` columns of x in the rows that a caller keeps, from a column on; if x
    is None, restores those of the output. Compilation in parts adds it."""

    kind: ClassVar[str] = "keep"
    x: Value | None
    column: int
    width: int
