"""i2p: four levels {-3/4, -1/4, 1/4, 3/4} of a row's scale (ParetoQ's 2-bit), in two bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

LEVELS = Codebook(range(-3, 4, 2), offset=3, value=0.25)


class FourLevel(Format):
    """Levels -3, -1, 1, 3 times scale / 4; a scale is max |w| (ParetoQ, section 3)."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Four times (round(clamp(w / s, -0.99, 0.99) * 2 - 0.5) + 0.5) / 2, s = max |w|.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        axis = self.axis(scale)
        s = np.asarray(np.abs(w).max(axis=axis, initial=0.0), np.float32)
        alpha = np.where(s > 0, s, np.float32(1))  # any will do for zeros
        return four_levels(w, alpha[:, None] if axis else alpha), s


FORMAT = FourLevel(
    name="i2p",
    layout=Layout("b2"),
    bits=2.0,
    summary="four levels, two bits (ParetoQ)",
    codebook=LEVELS,
    scales=RowScales("row"),
)


def four_levels(w: F32, alpha: F32) -> npt.NDArray[np.int8]:
    """w float32 [M, K] and its range alpha, () or [M, 1] -> levels -3, -1, 1, 3, int8 [M, K]."""
    ratio = np.clip(w / alpha, -0.99, 0.99).astype(np.float32)
    half = np.rint(ratio * np.float32(2) - np.float32(0.5))
    return np.asarray(2 * half + 1, np.int8)
