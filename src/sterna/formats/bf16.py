"""bf16: bfloat16 weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.floats import FloatFormat
from sterna.formats.layout import Layout
from sterna.formats.scales import NoScales


class Brain(FloatFormat):
    """The upper half of a float32."""

    def words(self, x: F32) -> npt.NDArray[Any]:
        """float32 [...] -> uint16 [...], the upper half, rounded half to even."""
        bits = x.view(np.uint32)
        return ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)

    def floats(self, words: npt.NDArray[Any]) -> F32:
        """uint16 [...] -> float32 [...], exact."""
        return (words.astype(np.uint32) << 16).view(np.float32)


FORMAT = Brain(
    name="bf16",
    layout=Layout("bf16"),
    bits=16.0,
    summary="bfloat16",
    scales=NoScales(),
    exponent=0x7F80,
)
