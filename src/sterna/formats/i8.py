"""i8: eight-bit levels, stored as level + 128. Rounding here never gives -128; others' may."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales


class Int8(Format):
    """A scale is max |w| / 127."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """round(w / s), half to even, s = max |w| / 127.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        axis = self.axis(scale)
        absmax = np.abs(w).max(axis=axis, initial=0.0)
        s = np.where(absmax > 0, absmax / np.float32(127), np.float32(1)).astype(np.float32)
        s = np.where(s == 0, np.float32(1), s)  # all of the row is below the smallest scale
        levels = w / (s[:, None] if axis else s)
        np.clip(np.rint(levels, out=levels), -127, 127, out=levels)
        return levels.astype(np.int8), s


FORMAT = Int8(
    name="i8",
    layout=Layout("b8"),
    bits=8.0,
    summary="symmetric int8",
    codebook=Codebook(range(-128, 128), offset=128),
    scales=RowScales("row"),
)
