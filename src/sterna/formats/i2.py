"""i2: ternary weights {-1, 0, 1} in two bits, with BitNet's absmean rounding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, mean_abs
from sterna.formats.base import Format


@dataclass(frozen=True)
class Ternary(Format):
    """Ternary levels; a scale is the mean of |w|, floored at 1e-5 (BitNet b1.58, equation 3)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w [M, K] to sign-and-zero: t = clamp(round(w / s), -1, 1), s = mean |w|."""
        axis = 1 if (scale or self.default_scale) == "row" else None
        s = mean_abs(w, axis)
        # The reciprocal is rounded first, as the reference does: it decides near-ties.
        inverse = np.float32(1.0) / s
        levels = w * (inverse[:, None] if axis else inverse)
        np.clip(np.rint(levels, out=levels), -1, 1, out=levels)
        return levels.astype(np.int8), s


FORMAT = Ternary(
    name="i2", layout="b2", bits=2.0, summary="ternary, two bits",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
)  # fmt: skip
