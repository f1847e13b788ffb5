"""pq2_0: Prism's blocks of the levels -1, 0, 1, 2 in two bits, an f16 scale for every 128 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.q2_0 import of_least_error
from sterna.formats.scales import GroupScales


class PQ20(Format):
    """Blocks of q2_0, twice as long, without a minimum: the levels themselves are signed."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round blocks float32 [B, 128] by `of_least_error`: levels int8 [B, 128], scales [B]."""
        levels, d = of_least_error(blocks)
        return levels.astype(np.int8), d.astype(np.float32)


FORMAT = PQ20(
    name="pq2_0",
    layout=Layout("b2"),
    bits=2.125,
    summary="levels -1, 0, 1, 2, blocks (Prism PQ2_0)",
    codebook=Codebook(range(-1, 3), offset=1),
    scales=GroupScales(128),
)
