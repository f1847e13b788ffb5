"""i8: symmetric eight-bit levels in [-127, 127], stored as level + 128."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format


@dataclass(frozen=True)
class Int8(Format):
    """A scale is max |w| / 127."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w [M, K] to round(w / s), half to even, s = max |w| / 127."""
        axis = 1 if (scale or self.default_scale) == "row" else None
        absmax = np.abs(w).max(axis=axis, initial=0.0)
        s = np.where(absmax > 0, absmax / np.float32(127), np.float32(1)).astype(np.float32)
        s = np.where(s == 0, np.float32(1), s)  # all of the row is below the smallest scale
        levels = w / (s[:, None] if axis else s)
        np.clip(np.rint(levels, out=levels), -127, 127, out=levels)
        return levels.astype(np.int8), s


FORMAT = Int8(
    name="i8", layout="b8", bits=8.0, summary="symmetric int8",
    levels=(-127, 127), offset=128, step=1, z2=256, unit=0.5, default_scale="row",
)  # fmt: skip
