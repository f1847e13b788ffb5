"""f32: IEEE single weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.floats import FloatFormat


class Single(FloatFormat):
    """float32 itself."""

    def words(self, x: F32) -> npt.NDArray[Any]:
        """As they are."""
        return x

    def floats(self, words: npt.NDArray[Any]) -> F32:
        """As they are."""
        return np.asarray(words, np.float32)


FORMAT = Single(
    name="f32", layout="f32", bits=32.0, summary="IEEE single", integer=False, default_scale="none",
    word=np.float32, exponent=0x7F800000, wider="smaller weights",
)  # fmt: skip
