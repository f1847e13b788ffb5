"""iq4_nl: GGUF's four-bit blocks of sixteen uneven levels, an f16 scale for every 32 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, half_if_finite, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales

__all__ = ["CODEBOOK", "FORMAT"]

#: ggml's, the same for iq4_xs: closer to each other around 0.
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
CODEBOOK = Codebook(LEVELS, offset=128)


class Iq4Nl(Format):
    """A scale puts the block's largest value near the first level."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round to the nearest levels for the scale largest / -127.

        blocks float32 [B, 32] -> (levels int8 [B, 32], scales float32 [B]).
        """
        at = np.abs(blocks).argmax(axis=1)[:, None]
        start = np.take_along_axis(blocks, at, 1)[:, 0] / np.float32(LEVELS[0])
        d = half_if_finite(start)
        levels = CODEBOOK.nearest(blocks.astype(np.float64) * inverse_or_zero(d)[:, None])
        return levels, d


FORMAT = Iq4Nl(
    name="iq4_nl",
    layout=Layout("iq4"),
    bits=4.5,
    summary="sixteen uneven levels, blocks (GGUF IQ4_NL)",
    codebook=CODEBOOK,
    scales=GroupScales(32),
    searched=True,
)
