"""Places where LoRA adapters add to linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["AdaptOp", "AdaptedLayer"]


@dataclass(frozen=True)
class AdaptedLayer:
    """A linear layer by the name that a checkpoint has for it, [M, K], and the column of a row
    where its results begin."""

    name: str
    M: int
    K: int
    column: int


@dataclass(eq=False, kw_only=True)
class AdaptOp(Op):
    """The terms that LoRA adapters add to the output of linear layers with the input x, times the
    factor."""

    kind: ClassVar[str] = "adapt"
    x: Value
    parts: tuple[AdaptedLayer, ...]
    factor: float

    @property
    def float_inputs(self) -> list[Value]:
        return []  # only steps with an adapter read them, and say so
