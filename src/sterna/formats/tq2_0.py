"""tq2_0: GGUF's ternary blocks in two bits, an f16 scale for every 256 k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, inverse_or_zero, round_half_away
from sterna.formats.base import Format

__all__ = ["BLOCK_K", "FORMAT", "TernaryBlocks"]

BLOCK_K = 256


@dataclass(frozen=True)
class TernaryBlocks(Format):
    """Ternary levels; a scale is max |w| of its block, made f16 after the levels are found."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Blocks [B, 256] -> round(w / d), half away from zero, d = max |w| (ggml's TQ types)."""
        d = np.abs(blocks).max(axis=1, initial=0.0)
        levels = round_half_away(blocks * inverse_or_zero(d)[:, None])
        return np.clip(levels, -1, 1).astype(np.int8), d


FORMAT = TernaryBlocks(
    name="tq2_0", layout="b2", bits=2.0625, summary="ternary, two bits, blocks (GGUF TQ2_0)",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5, default_scale="group",
    group=BLOCK_K, x_group=BLOCK_K, scale_type="f16",
)  # fmt: skip
