"""i1: binary weights {-1, 1} in one bit, with the mean of |w| as their scale."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, mean_abs
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales


class Binary(Format):
    """Levels -1 and 1; a scale is the mean of |w| (ParetoQ, 1 bit)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w to its sign, or 1 for 0, times s = mean |w|.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        s = mean_abs(w, self.axis(scale))
        return np.where(w < 0, -1, 1).astype(np.int8), s


FORMAT = Binary(
    name="i1",
    layout=Layout("b1"),
    bits=1.0,
    summary="binary, one bit",
    codebook=Codebook(range(-1, 2, 2), offset=1),
    scales=RowScales("row"),
)
