"""i2: ternary weights {-1, 0, 1} in two bits, with BitNet's absmean rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, mean_abs
from sterna.formats.base import Format

LEAST_INVERTIBLE = np.float32(2.0**-126)  # 1 / s of some smaller ones is no float32


@dataclass(frozen=True)
class Ternary(Format):
    """Ternary levels; a scale is the mean of |w| (BitNet b1.58, equation 3)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w [M, K] to sign-and-zero: t = clamp(round(w / s), -1, 1), s = mean |w|."""
        return absmean(w, 1 if (scale or self.default_scale) == "row" else None)


FORMAT = Ternary(
    name="i2", layout="b2", bits=2.0, summary="ternary, two bits",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
)  # fmt: skip


def absmean(w: F32, axis: int | None, smallest: float = 0.0) -> tuple[npt.NDArray[np.int8], F32]:
    """(clamp(round(w / s), -1, 1), s), s = mean |w| over `axis`, at least `smallest`; 1 for 0."""
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
