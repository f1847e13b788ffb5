"""The rows whose logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["SelectOp"]


@dataclass(eq=False, kw_only=True)
class SelectOp(Op):
    """The rows of x whose logits are wanted."""

    kind: ClassVar[str] = "select"
    x: Value
