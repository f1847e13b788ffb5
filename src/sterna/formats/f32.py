"""f32: IEEE single weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.floats import FloatFormat
from sterna.formats.layout import Layout
from sterna.formats.scales import NoScales


class Single(FloatFormat):
    """float32 itself."""

    def words(self, x: F32) -> npt.NDArray[Any]:
        """float32 [...] -> the same array."""
        return x

    def floats(self, words: npt.NDArray[Any]) -> F32:
        """float32 [...] -> float32 [...], the values themselves."""
        return np.asarray(words, np.float32)


FORMAT = Single(
    name="f32",
    layout=Layout("f32"),
    bits=32.0,
    summary="IEEE single",
    scales=NoScales(),
    word=np.float32,
    exponent=0x7F800000,
    wider="smaller weights",
)
