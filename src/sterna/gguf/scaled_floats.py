"""NVFP4 blocks of GGUF files: E2M1 floats of four bits with an unsigned E4M3 scale for each 16.

A block of 64 weights is four scales, then for each 16 eight bytes: low nibbles are the first eight.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.formats.scales import E4M3, MICRO_K
from sterna.weights.storages import Levels
from sterna.weights.storages.fp4 import nvfp4_levels

__all__ = ["nvfp4"]

BLOCK_K, BLOCK_BYTES = 64, 36
NAN = 0x7F  # a scale of 0, as ggml decodes it


def nvfp4(raw: npt.NDArray[np.uint8], factor: np.float32 | None) -> Levels:
    """Read rows of blocks uint8 [M, bytes]; factor: the whole tensor's scale, None: 1."""
    M, blocks = len(raw), raw.shape[1] // BLOCK_BYTES
    parts = raw.reshape(M, blocks, BLOCK_BYTES)
    stored = parts[:, :, :4].reshape(M, blocks * 4) & 0x7F  # it has no sign
    scales = E4M3.decoded(np.where(stored == NAN, np.uint8(0), stored))
    pairs = parts[:, :, 4:].reshape(M, blocks, 4, MICRO_K // 2)
    codes = np.concatenate([pairs & 15, pairs >> 4], axis=3).reshape(M, blocks * BLOCK_K)
    return nvfp4_levels(codes, scales, np.asarray(1 if factor is None else factor, np.float32))
