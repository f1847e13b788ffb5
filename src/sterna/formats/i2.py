"""i2: ternary weights {-1, 0, 1} in two bits, with BitNet's absmean rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, mean_abs
from sterna.formats.base import Format
from sterna.formats.codebook import TERNARY
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

LEAST_INVERTIBLE = np.float32(2.0**-126)  # 1 / s overflows float32 for some smaller s


class Ternary(Format):
    """Ternary levels; a scale is the mean of |w| (BitNet b1.58, equation 3)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """clamp(round(w / s), -1, 1), s = mean |w|.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        return absmean(w, self.axis(scale))


FORMAT = Ternary(
    name="i2",
    layout=Layout("b2"),
    bits=2.0,
    summary="ternary, two bits",
    codebook=TERNARY,
    scales=RowScales("tensor"),
)


def absmean(w: F32, axis: int | None, smallest: float = 0.0) -> tuple[npt.NDArray[np.int8], F32]:
    """w float32 [M, K] -> (clamp(round(w / s), -1, 1) int8 [M, K], s float32 () or (M,)).

    s is the mean of |w| over `axis`, at least `smallest`; 1 for 0.
    """
    s = np.maximum(mean_abs(w, axis), np.float32(smallest))
    s = np.where(s > 0, s, np.float32(1)).astype(np.float32)
    if (s < LEAST_INVERTIBLE).any():  # a power of two on both sides changes no other quotient
        up = np.where(s < LEAST_INVERTIBLE, np.float32(2.0**32), np.float32(1))
        w = w * (up[:, None] if axis else up)
        inverse = np.float32(1.0) / (s * up)
    else:
        inverse = np.float32(1.0) / s
    # The reciprocal is rounded first, as the reference does: it decides near-ties.
    levels = w * (inverse[:, None] if axis else inverse)
    np.clip(np.rint(levels, out=levels), -1, 1, out=levels)
    return levels.astype(np.int8), s
