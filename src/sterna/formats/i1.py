"""i1: binary weights {-1, 1} in one bit, with the mean of |w| as their scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, mean_abs
from sterna.formats.base import Format


@dataclass(frozen=True)
class Binary(Format):
    """Levels -1 and 1; a scale is the mean of |w| (ParetoQ, 1 bit)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Signs of w [M, K], that of 0 being 1, and s = mean |w|."""
        s = mean_abs(w, 1 if (scale or self.default_scale) == "row" else None)
        return np.where(w < 0, -1, 1).astype(np.int8), s


FORMAT = Binary(
    name="i1", layout="b1", bits=1.0, summary="binary, one bit",
    levels=(-1, 1), offset=1, step=2, z2=1, unit=1.0, default_scale="row",
)  # fmt: skip
