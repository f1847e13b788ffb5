"""stq1_0: Tencent's sparse ternary blocks (Sherry) in 1.25 bits, an f16 scale for every 256 k.

Of four weights that lie 16 apart, one is 0. Files have such weights (GGUF's STQ1_0). Others lose
much to it, so the format is not among those that are offered for rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.codebook import TERNARY
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales
from sterna.formats.tq2_0 import BLOCK_K, TernaryBlockFormat

CHUNK, LANES = 64, 4  # k of a chunk of 16 groups; lanes of a group


class SparseTernary(TernaryBlockFormat):
    """Ternary levels of which one in each group of four is 0: arXiv 2601.07892."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Make the least |w| of each four 0, the others their signs; d = max |w| of the block.

        blocks float32 [B, 256] -> (levels int8 [B, 256], scales float32 [B]).
        """
        groups = blocks.reshape(len(blocks), -1, LANES, CHUNK // LANES)
        levels = np.where(groups < 0, np.int8(-1), np.int8(1))
        least = np.abs(groups).argmin(axis=2, keepdims=True)
        np.put_along_axis(levels, least, 0, axis=2)
        return levels.reshape(blocks.shape), np.abs(blocks).max(axis=1, initial=0.0)

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the levels [M, K]; RequestError for a group without exactly one 0."""
        groups = values.reshape(len(values), -1, LANES, CHUNK // LANES)
        wrong = (groups == 0).sum(axis=2) != 1
        if wrong.any():
            row, chunk, group = first_index(wrong)
            raise RequestError(
                f"{self.name}: each four weights that lie 16 apart must have one 0, but those of "
                f"row {row} from column {chunk * CHUNK + group} on have another number; "
                "use tq1_0"
            )
        return super().encode(values)


FORMAT = SparseTernary(
    name="stq1_0",
    layout=Layout("s5"),
    bits=1.25 + 16 / BLOCK_K,
    summary="ternary, one of four is 0, blocks (Tencent STQ1_0)",
    codebook=TERNARY,
    scales=GroupScales(BLOCK_K, x_group=BLOCK_K),
    instead="q4_0",
    of_files=True,
)
