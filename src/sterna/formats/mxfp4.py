"""mxfp4: OCP Microscaling's four-bit floats, E2M1 with a power of two for every 32 k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.base import Format

# Twice the values of E2M1.
CODEBOOK = (-12, -8, -6, -4, -3, -2, -1, 0, 1, 2, 3, 4, 6, 8, 12)


@dataclass(frozen=True)
class MxFp4(Format):
    """Levels are twice E2M1's values, so that a weight is level / 2 * scale."""

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Blocks [B, 32] -> the nearest value, of two the one nearer to zero.

        The scale is 2^(floor(log2(max |w|)) - 2) (OCP Microscaling Formats 1.0, section 6.3).
        """
        absmax = np.abs(blocks).max(axis=1, initial=0.0)
        exponent = np.where(absmax > 0, np.frexp(absmax)[1] - 3, -127)
        scale = np.ldexp(np.float32(1), np.maximum(exponent, -127)).astype(np.float32)
        positive = np.array([level for level in CODEBOOK if level >= 0], np.float32)
        middles = (positive[1:] + positive[:-1]) / 4  # of the values, which are levels / 2
        index = np.searchsorted(middles, np.abs(blocks) / scale[:, None], side="left")
        levels = positive[index] * np.where(blocks < 0, -1, 1)
        return levels.astype(np.int8), scale


FORMAT = MxFp4(
    name="mxfp4", layout="fp4", bits=4.25, summary="four-bit floats (OCP MXFP4)",
    levels=(-12, 12), codebook=CODEBOOK, offset=12, step=1, z2=24, unit=0.25,
    default_scale="group", group=32, scale_type="e8m0",
)  # fmt: skip
