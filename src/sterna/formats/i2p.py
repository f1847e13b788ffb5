"""i2p: four levels {-3/4, -1/4, 1/4, 3/4} of a row's scale (ParetoQ's 2-bit), in two bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.base import F32, Format


@dataclass(frozen=True)
class FourLevel(Format):
    """Levels -3, -1, 1, 3 times scale / 4; a scale is max |w| (ParetoQ, section 3)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w [M, K]: (round(clamp(w / s, -0.99, 0.99) * 2 - 0.5) + 0.5) / 2, s = max |w|."""
        axis = 1 if (scale or self.default_scale) == "row" else None
        s = np.maximum(np.abs(w).max(axis=axis, initial=0.0), 1e-5).astype(np.float32)
        ratio = np.clip(w / (s[:, None] if axis else s), -0.99, 0.99).astype(np.float32)
        half = np.rint(ratio * np.float32(2) - np.float32(0.5))
        return (2 * half + 1).astype(np.int8), s


FORMAT = FourLevel(
    name="i2p", layout="b2", bits=2.0, summary="four levels, two bits (ParetoQ)",
    levels=(-3, 3), offset=3, step=2, z2=3, unit=0.25, default_scale="row",
)  # fmt: skip
