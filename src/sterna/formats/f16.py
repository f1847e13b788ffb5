"""f16: IEEE half weights, summed over k in ascending order with float32 fused multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.floats import FloatFormat
from sterna.formats.layout import Layout
from sterna.formats.scales import NoScales


class Half(FloatFormat):
    """numpy's float16."""

    def words(self, x: F32) -> npt.NDArray[Any]:
        """float32 [...] -> uint16 [...] of float16, rounded half to even."""
        return x.astype(np.float16).view(np.uint16)

    def floats(self, words: npt.NDArray[Any]) -> F32:
        """uint16 or float16 [...] -> float32 [...], exact."""
        return np.asarray(words.view(np.float16), np.float32)


FORMAT = Half(
    name="f16",
    layout=Layout("f16"),
    bits=16.0,
    summary="IEEE half",
    scales=NoScales(),
    exponent=0x7C00,
    wider="bf16 or f32",
)
