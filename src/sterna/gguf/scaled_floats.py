"""NVFP4 blocks of GGUF files: E2M1 floats of four bits with an unsigned E4M3 scale for each 16.

A block of 64 weights is four scales, then for each 16 eight bytes: low nibbles are the first eight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.formats.scaled_floats import ScaledFloats
from sterna.weights.storages import Floats

__all__ = ["nvfp4"]

BLOCK_K, BLOCK_BYTES, GROUP = 64, 36, 16
NAN = 0x7F  # a scale of 0, as ggml decodes it


def nvfp4(raw: npt.NDArray[np.uint8], factor: np.float32 | None) -> Floats:
    """Read rows of blocks uint8 [M, bytes]; factor: the whole tensor's scale, None: 1."""
    M, blocks = len(raw), raw.shape[1] // BLOCK_BYTES
    parts = raw.reshape(M, blocks, BLOCK_BYTES)
    e4m3, own = formats.get("fp8"), formats.get("nvfp4")
    assert isinstance(e4m3, ScaledFloats)
    assert isinstance(own, ScaledFloats)
    stored = parts[:, :, :4].reshape(M, blocks * 4) & 0x7F  # it has no sign
    scales = e4m3.values[np.where(stored == NAN, np.uint8(0), stored)]
    if factor is not None:
        scales = np.asarray(scales * factor, np.float32)
    pairs = parts[:, :, 4:].reshape(M, blocks, 4, GROUP // 2)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=3).reshape(M, blocks * BLOCK_K)
    return Floats("nvfp4", own.joined(codes, scales))
