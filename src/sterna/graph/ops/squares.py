"""What calibration learns of the inputs of linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["SquaresOp"]


@dataclass(eq=False, kw_only=True)
class SquaresOp(Op):
    """Adds up the squares of x by column; its output is x itself."""

    kind: ClassVar[str] = "squares"
    x: Value
