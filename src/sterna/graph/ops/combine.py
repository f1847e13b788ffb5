"""Combines the results of a token's experts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["CombineOp"]


@dataclass(eq=False, kw_only=True)
class CombineOp(Op):
    """(residual +) the sum of a token's rows of experts, each times its share, if there is one."""

    kind: ClassVar[str] = "combine"
    x: Value
    shares: Value | None
    residual: Value | None = None

    @property
    def reused(self) -> Value | None:
        return self.residual
