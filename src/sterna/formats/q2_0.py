"""q2_0: GGUF's blocks of the levels -1, 0, 1, 2 in two bits, an f16 scale d for every 64 k.

They are kept as level * d + minimum, with levels 0..3 and the minimum -d: the same weights, with
codes that two-bit kernels sum on every unit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, half_if_finite, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales


def of_least_error(blocks: F32) -> tuple[F32, F32]:
    """Round blocks float32 [B, k] by one of two d to (levels -1..2 [B, k], scales d [B]).

    One d is the largest |w|, the other half of the largest w, with its sign. The d with the smaller
    square error is taken.
    """
    at = np.abs(blocks).argmax(axis=1)[:, None]
    largest = np.take_along_axis(blocks, at, 1)[:, 0]
    tried = []
    for d in (np.abs(largest), largest / np.float32(2)):
        half = half_if_finite(d)
        levels = np.clip(np.rint(blocks * inverse_or_zero(half)[:, None]), -1, 2)
        with np.errstate(over="ignore"):
            error = np.square(levels * half[:, None] - blocks).sum(axis=1)
        tried.append((half, levels, error))
    (d, first, first_error), (other_d, second, second_error) = tried
    better = second_error < first_error
    return np.where(better[:, None], second, first), np.where(better, other_d, d)


class Q20(Format):
    """A weight is (level - 1) d."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round blocks float32 [B, 64] by `of_least_error`: levels int8 [B, 64], scales [B, 2]."""
        levels, d = of_least_error(blocks)
        return (levels + 1).astype(np.int8), np.stack([d, -d], axis=1).astype(np.float32)


FORMAT = Q20(
    name="q2_0",
    layout=Layout("b2"),
    bits=2.5,
    summary="levels -1, 0, 1, 2, blocks (GGUF Q2_0)",
    codebook=Codebook(range(4), offset=0),
    scales=GroupScales(64, minima=True),
    instead="q4_0",
)
