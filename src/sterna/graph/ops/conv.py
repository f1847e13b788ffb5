"""Causal convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["ConvOp"]


@dataclass(eq=False, kw_only=True)
class ConvOp(Op):
    """A causal convolution of each of the first channels by itself, then SiLU, in place.

    taps: float32 [width, channels].
    """

    kind: ClassVar[str] = "conv"
    x: Value
    taps: F32

    @property
    def reused(self) -> Value | None:
        return self.x

    @property
    def in_place(self) -> bool:
        return True
