"""Several streams of each token, and rows of another's size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["AltUpOp", "RescaleOp"]


@dataclass(eq=False, kw_only=True)
class AltUpOp(Op):
    """A row of `streams`: each plus the sum of all times the factors [streams, streams].

    With `made`, which a layer made of the stream `active`: each plus (1 + factor) times what the
    layer changed; factors [streams].
    """

    kind: ClassVar[str] = "altup"
    x: Value
    made: Value | None
    factors: Value
    streams: int
    active: int


@dataclass(eq=False, kw_only=True)
class RescaleOp(Op):
    """The columns of x from `column` on times rms(size_of) / rms(columns) (+ residual).

    least: of the mean square that the columns are taken to have.
    """

    kind: ClassVar[str] = "rescale"
    x: Value
    size_of: Value
    column: int
    least: float
    residual: Value | None
