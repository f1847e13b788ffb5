"""q4_1: GGUF's four-bit blocks with minima: levels 0..15, two f16 for every 32 k.

q5_1 has the same rule with levels of five bits.
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

__all__ = ["FORMAT", "OverRange"]


class OverRange(Format):
    """A weight is level * scale + minimum; the scale is the block's range over the top level."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """min(floor((w - m) / d + 0.5), n), m = min w, d = (max w - m) / n (ggml).

        n is 15 of four bits, 31 of five. blocks float32 [B, 32] -> (levels int8 [B, 32], scales
        float32 [B, 2] of d and m).
        """
        assert self.codebook is not None
        n = self.codebook.high
        m, most = blocks.min(axis=1, initial=np.inf), blocks.max(axis=1, initial=-np.inf)
        d = ((most - m) / np.float32(n)).astype(np.float32)
        levels = np.floor((blocks - m[:, None]) * inverse_or_zero(d)[:, None] + np.float32(0.5))
        return np.clip(levels, 0, n).astype(np.int8), np.stack([d, m.astype(np.float32)], axis=1)


FORMAT = OverRange(
    name="q4_1",
    layout=Layout("b4"),
    bits=5.0,
    summary="four-bit blocks with a minimum (GGUF Q4_1)",
    codebook=Codebook(range(16), offset=0),
    scales=GroupScales(32, minima=True),
    searched=True,
)
