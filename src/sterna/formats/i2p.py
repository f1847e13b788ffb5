"""i2p: four levels {-3/4, -1/4, 1/4, 3/4} of a row's scale (ParetoQ's 2-bit), in two bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index
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
    name="i2p", layout=Layout("b2"), bits=2.0,
    summary="four levels, two bits (ParetoQ)",
    codebook=LEVELS, scales=RowScales("row"),
)  # fmt: skip


def four_levels(w: F32, alpha: F32) -> npt.NDArray[np.int8]:
    """w float32 [M, K] and its range alpha, () or [M, 1] -> levels -3, -1, 1, 3, int8 [M, K]."""
    ratio = np.clip(w / alpha, -0.99, 0.99).astype(np.float32)
    half = np.rint(ratio * np.float32(2) - np.float32(0.5))
    return np.asarray(2 * half + 1, np.int8)


def sign_planes(w: F32) -> list[tuple[npt.NDArray[np.int8], F32]]:
    """Rows -high, -low, low, high of any ratio as two sums of signs: [(levels, scale), twice].

    w [M, K] is s0 S0 + s1 S1 with S0, S1 int8 [M, K] of -1 and 1 and s float32 [M]: two `i1`
    matrices, 2 bits a weight. Files of ParetoQ models that hold floats have rounded low and high,
    each by itself, so that they are 1 : 3 no longer, as i2p has them. RequestError for a row of
    more than two sizes.
    """
    size = np.abs(np.asarray(w, np.float32))
    high = size.max(axis=1, initial=0.0)
    low = size.min(axis=1, initial=np.inf, where=size < high[:, None])
    low = np.where(np.isfinite(low), low, high).astype(np.float32)
    is_high = size == high[:, None]
    wrong = ~(is_high | (size == low[:, None]))
    if wrong.any():
        at = first_index(wrong)
        raise RequestError(
            f"i2p: a row must have values of two sizes, {low[at[0]]} and {high[at[0]]}, "
            f"but element {at} is {w[at]}; use ops.quantize"
        )
    first = np.where(w < 0, -1, 1).astype(np.int8)
    second = np.where(is_high, first, -first)
    half = np.float32(0.5)
    return [(first, (high + low) * half), (second, (high - low) * half)]
