"""i4: symmetric four-bit levels in [-8, 7], stored as level + 8."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales


class Int4(Format):
    """A scale is max |w| / 7 (ParetoQ's 4-bit start)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """round(w / s), half to even, s = max |w| / 7.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        axis = self.axis(scale)
        s = np.asarray(np.abs(w).max(axis=axis, initial=0.0) / np.float32(7), np.float32)
        s = np.where(s > 0, s, np.float32(1)).astype(np.float32)
        levels = w / (s[:, None] if axis else s)
        np.clip(np.rint(levels, out=levels), -8, 7, out=levels)
        return levels.astype(np.int8), s


FORMAT = Int4(
    name="i4",
    layout=Layout("b4"),
    bits=4.0,
    summary="symmetric four bits",
    codebook=Codebook(range(-8, 8), offset=8),
    scales=RowScales("row"),
    searched=True,
)
