"""The rows whose logits are needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import LATER
from sterna.graph.ops.base import Op, Value

__all__ = ["SelectOp"]


@dataclass(eq=False, kw_only=True)
class SelectOp(Op):
    """The rows of x whose logits are wanted; mean: in the place of each the mean of
    its sequence's rows."""

    kind: ClassVar[str] = "select"
    x: Value
    mean: bool = field(default=False, metadata=LATER)
