"""mxfp4: OCP Microscaling's four-bit floats, E2M1 with a power of two for every 32 k."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import E8M0, GroupScales

# Twice the values of E2M1.
LEVELS = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)


class MxFp4(Format):
    """Levels are twice E2M1's values, so that a weight is level / 2 * scale."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round to the nearest value, of two the one nearer to zero.

        The scale is 2^(floor(log2(max |w|)) - 2) (OCP Microscaling Formats 1.0, section 6.3).
        blocks float32 [B, 32] -> (levels int8 [B, 32], scales float32 [B]).
        """
        absmax = np.abs(blocks).max(axis=1, initial=0.0)
        exponent = np.where(absmax > 0, np.frexp(absmax)[1] - 3, -127)
        scale = np.ldexp(np.float32(1), np.maximum(exponent, -127)).astype(np.float32)
        positive = np.array([level for level in LEVELS if level >= 0], np.float32)
        middles = (positive[1:] + positive[:-1]) / 4  # of the values, which are levels / 2
        index = np.searchsorted(middles, np.abs(blocks) / scale[:, None], side="left")
        levels = positive[index] * np.where(blocks < 0, -1, 1)
        return levels.astype(np.int8), scale


FORMAT = MxFp4(
    name="mxfp4",
    layout=Layout("fp4"),
    bits=4.25,
    summary="four-bit floats (OCP MXFP4)",
    codebook=Codebook(LEVELS, offset=12, value=0.5),
    scales=GroupScales(32, E8M0),
    searched=True,
)
