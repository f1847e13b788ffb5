"""q4_0: GGUF's four-bit blocks, levels -8..7 with an f16 scale for every 32 k.

q5_0 has the same rule with levels of five bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales

__all__ = ["FORMAT", "LargestAtLow"]


class LargestAtLow(Format):
    """A scale is the value of the largest magnitude, with its sign, over the lowest level."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """min(floor(w / d + n + 0.5), 2 n - 1) - n, d = (w of max |w|) / -n (ggml).

        n is 8 of four bits, 16 of five. blocks float32 [B, 32] -> (levels int8 [B, 32], scales
        float32 [B]).
        """
        assert self.codebook is not None
        n = -self.codebook.low
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
        d = (largest[:, 0] / np.float32(-n)).astype(np.float32)
        codes = np.floor(blocks * inverse_or_zero(d)[:, None] + np.float32(n + 0.5))
        return (np.clip(codes, 0, 2 * n - 1) - n).astype(np.int8), d


FORMAT = LargestAtLow(
    name="q4_0",
    layout=Layout("b4"),
    bits=4.5,
    summary="four-bit blocks (GGUF Q4_0)",
    codebook=Codebook(range(-8, 8), offset=8),
    scales=GroupScales(32),
    searched=True,
)
