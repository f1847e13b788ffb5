"""q8_0: GGUF's eight-bit blocks, levels -128..127 with an f16 scale for every 32 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, inverse_or_zero, round_half_away
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales


class Q80(Format):
    """A scale is max |w| / 127 of its block, rounded to f16 after the levels are found."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """round(w / d), half away from zero, d = max |w| / 127 (ggml's Q8_0).

        blocks float32 [B, 32] -> (levels int8 [B, 32], scales float32 [B]).
        """
        d = np.abs(blocks).max(axis=1, initial=0.0) / np.float32(127)
        levels = round_half_away(blocks * inverse_or_zero(d)[:, None])
        return np.clip(levels, -127, 127).astype(np.int8), d


FORMAT = Q80(
    name="q8_0",
    layout=Layout("b8"),
    bits=8.5,
    summary="eight-bit blocks (GGUF Q8_0)",
    codebook=Codebook(range(-128, 128), offset=128),
    scales=GroupScales(32),
)
