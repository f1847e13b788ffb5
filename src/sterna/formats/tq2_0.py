"""tq2_0: GGUF's ternary blocks in two bits, an f16 scale for every 256 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, inverse_or_zero, round_half_away
from sterna.formats.base import Format
from sterna.formats.codebook import TERNARY
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales

__all__ = ["BLOCK_K", "FORMAT", "TernaryBlockFormat"]

BLOCK_K = 256


class TernaryBlockFormat(Format):
    """Ternary levels; a scale is max |w| of its block, made f16 after the levels are found."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """round(w / d), half away from zero, d = max |w| (ggml's TQ types).

        blocks float32 [B, 256] -> (levels int8 [B, 256], scales float32 [B]).
        """
        d = np.abs(blocks).max(axis=1, initial=0.0)
        levels = round_half_away(blocks * inverse_or_zero(d)[:, None])
        return np.clip(levels, -1, 1).astype(np.int8), d


FORMAT = TernaryBlockFormat(
    name="tq2_0",
    layout=Layout("b2"),
    bits=2.0625,
    summary="ternary, two bits, blocks (GGUF TQ2_0)",
    codebook=TERNARY,
    scales=GroupScales(BLOCK_K, x_group=BLOCK_K),
    instead="q4_0",
)
