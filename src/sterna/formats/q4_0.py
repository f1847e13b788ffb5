"""q4_0: GGUF's four-bit blocks, levels -8..7 with an f16 scale for every 32 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales


class Q40(Format):
    """A scale is the block's value of the largest magnitude, sign and all, over -8."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """min(floor(w / d + 8.5), 15) - 8, d = (w of max |w|) / -8 (ggml).

        blocks float32 [B, 32] -> (levels int8 [B, 32], scales float32 [B]).
        """
        largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=1)[:, None], axis=1)
        d = (largest[:, 0] / np.float32(-8)).astype(np.float32)
        codes = np.floor(blocks * inverse_or_zero(d)[:, None] + np.float32(8.5))
        return (np.clip(codes, 0, 15) - 8).astype(np.int8), d


FORMAT = Q40(
    name="q4_0", layout=Layout("b4"), bits=4.5,
    summary="four-bit blocks (GGUF Q4_0)",
    codebook=Codebook(range(-8, 8), offset=8), scales=GroupScales(32),
)  # fmt: skip
