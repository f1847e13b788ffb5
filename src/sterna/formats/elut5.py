"""elut5: five levels by element-wise lookup, two weights in five bits (bitnet.cpp, table 3)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales


class FiveLevel(Format):
    """Levels -2..2; a scale is max |w| / 2, as in symmetric integer quantisation."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """round(w / s), half to even, s = max |w| / 2, or 1 for zeros.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        axis = self.axis(scale)
        s = np.asarray(np.abs(w).max(axis=axis, initial=0.0) / np.float32(2), np.float32)
        s = np.where(s > 0, s, np.float32(1)).astype(np.float32)
        levels = np.clip(np.rint(w / (s[:, None] if axis else s)), -2, 2)
        return levels.astype(np.int8), s


FORMAT = FiveLevel(
    name="elut5", layout=Layout("elut5"), bits=2.5,
    summary="five levels, lookup by two, exact tables",
    codebook=Codebook(range(-2, 3), offset=2), scales=RowScales("row"),
)  # fmt: skip
