"""Causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import LATER, InPlaceOp, Op, Value

__all__ = ["ConvOp", "ShortConvOp"]


@dataclass(eq=False, kw_only=True)
class ConvOp(InPlaceOp):
    """A causal depthwise convolution of channels, then SiLU, in place.

    taps: float32 [width, channels]; bias: float32 [channels]; column: where the channels begin.
    linear: no SiLU follows.
    """

    kind: ClassVar[str] = "conv"
    taps: F32
    bias: F32 | None = field(default=None, metadata=LATER)
    column: int = field(default=0, metadata=LATER)
    linear: bool = field(default=False, metadata=LATER)


@dataclass(eq=False, kw_only=True)
class ShortConvOp(Op):
    """after * (conv(before * x) (+ bias)) of a row [before | after | x], depthwise.

    taps: float32 [width, channels]; bias: float32 [channels].
    """

    kind: ClassVar[str] = "short_conv"
    x: Value
    taps: F32
    bias: F32 | None = None
