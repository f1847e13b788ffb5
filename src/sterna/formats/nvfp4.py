"""nvfp4: NVIDIA's four-bit floats, E2M1 with an E4M3 for every 16 k and a float for each row."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.mxfp4 import LEVELS
from sterna.formats.scales import E4M3, MICRO_K, MicroBlockScales

__all__ = ["FORMAT", "LEVELS"]


class NvFp4(Format):
    """Levels are twice E2M1's values, and d has the half."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round to the nearest value; the largest weights of a row and of its blocks are 6 s_g d.

        NVIDIA's rule has one d for a matrix. float32 [M, K] -> (levels int8 [M, K], scales float32
        [M, 1, 1 + K / 16]).
        """
        assert self.codebook is not None
        M, K = w.shape
        most = np.abs(w.reshape(M, -1, MICRO_K)).max(axis=2, initial=0.0) / LEVELS[-1]
        d = np.asarray(most.max(axis=1, keepdims=True, initial=0.0) / E4M3.most, np.float32)
        s = E4M3.nearest(np.asarray(np.minimum(most * inverse_or_zero(d), E4M3.most), np.float32))
        inverse = np.repeat(inverse_or_zero(np.asarray(d * s, np.float32)), MICRO_K, axis=1)
        levels = self.codebook.nearest(w.astype(np.float64) * inverse)
        return levels, np.concatenate([d, s], axis=1).reshape(self.scales.shape(M, K))


FORMAT = NvFp4(
    name="nvfp4",
    layout=Layout("fp4"),
    bits=4.5,
    summary="four-bit floats (NVFP4)",
    codebook=Codebook(LEVELS, offset=12),
    scales=MicroBlockScales(),
)
