"""Causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import LATER, InPlaceOp, Op, Value

__all__ = ["ConvOp", "ShortConvOp"]


@dataclass(eq=False, kw_only=True)
class ConvOp(InPlaceOp):
    """A causal depthwise convolution of channels of x, then SiLU, in place.

    taps: float32 [width, channels], the last row for the token itself. bias: float32 [channels].
    column: where the channels begin in x; other columns stay as they are. linear: no SiLU follows.
    """

    kind: ClassVar[str] = "conv"
    taps: F32
    bias: F32 | None = field(default=None, metadata=LATER)
    column: int = field(default=0, metadata=LATER)
    linear: bool = field(default=False, metadata=LATER)


@dataclass(eq=False, kw_only=True)
class ShortConvOp(Op):
    """after * (conv(before * x) (+ bias)) of a row [before | after | x]; the convolution is causal
    and depthwise.

    taps: float32 [width, channels], the last row for the token itself. bias: float32 [channels].
    """

    kind: ClassVar[str] = "short_conv"
    x: Value
    taps: F32
    bias: F32 | None = None

    def own_output(self) -> Value:
        return Value(self.taps.shape[1])
