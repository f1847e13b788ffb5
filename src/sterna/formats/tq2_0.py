"""tq2_0: GGUF's ternary blocks in two bits, an f16 scale for every 256 k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.base import F32, Format, inverse_or_zero, round_half_away

__all__ = ["BLOCK_BYTES", "FORMAT", "TernaryBlocks", "from_ggml", "split_blocks"]

BLOCK_K = 256
BLOCK_BYTES = 66


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


def split_blocks(
    blocks: npt.NDArray[np.uint8], nbytes: int, name: str
) -> tuple[npt.NDArray[np.uint8], F32]:
    """Rows of raw blocks [M, n * nbytes] -> (codes [M, n, nbytes - 2], scales float32 [M, n]).

    The f16 scale comes last in a block. RequestError where a row is no whole number of blocks.
    """
    if blocks.dtype != np.uint8 or blocks.ndim != 2 or blocks.shape[1] % nbytes:
        raise RequestError(
            f"{name}: blocks must be uint8 [M, {nbytes} n], but got {blocks.dtype} "
            f"{list(blocks.shape)}"
        )
    rows = np.ascontiguousarray(blocks).reshape(blocks.shape[0], -1, nbytes)
    scales = np.ascontiguousarray(rows[:, :, -2:]).view("<f2")[:, :, 0]
    return rows[:, :, :-2], scales.astype(np.float32)


def from_ggml(blocks: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int8], F32]:
    """ggml's TQ2_0 rows uint8 [M, 66 n] -> (levels int8 [M, 256 n], scales float32 [M, n]).

    Level 128 h + 32 l + m of a block is in bits 2l of byte 32 h + m. RequestError for a code 3,
    which is not ternary, and for a wrong shape.
    """
    codes, scales = split_blocks(blocks, BLOCK_BYTES, FORMAT.name)
    M, n, _ = codes.shape
    fields = codes.reshape(M, n, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    levels = (fields & 3).astype(np.int8).reshape(M, n * BLOCK_K) - np.int8(1)
    if (levels > 1).any():
        at = tuple(int(i) for i in np.argwhere(levels > 1)[0])
        raise RequestError(
            f"{FORMAT.name}: codes must be 0, 1 or 2, but element {at} is 3; the file is damaged, "
            "or not ternary"
        )
    return levels, scales
