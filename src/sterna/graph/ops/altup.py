"""Several streams of each token, and rows of another's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["AltUpOp", "RescaleOp"]


@dataclass(eq=False, kw_only=True)
class AltUpOp(Op):
    """Mixes the streams of a row (AltUp): each plus the sum of all of them times its factors.

    factors: [streams, streams], a stream's side by side. made: what a layer made of the stream
    `active`; then a stream is itself plus (1 + its factor) times what the layer changed, and
    factors are [streams].
    """

    kind: ClassVar[str] = "altup"
    x: Value
    made: Value | None = None
    factors: Value
    streams: int
    active: int


@dataclass(eq=False, kw_only=True)
class RescaleOp(Op):
    """x * rms(size_of) / rms(x) (+ residual), of as many columns as size_of has, from `column` on.

    least: the mean square that x is at least taken to have.
    """

    kind: ClassVar[str] = "rescale"
    x: Value
    size_of: Value
    column: int = 0
    least: float = 1e-5
    residual: Value | None = None

    def own_output(self) -> Value:
        return Value(self.size_of.width)
