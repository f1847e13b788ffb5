"""tq1_0: GGUF's smaller ternary blocks in the tiles of t5, an f16 scale for every 256 k."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.formats.base import F32
from sterna.formats.tq2_0 import BLOCK_K, TernaryBlocks, split_blocks

__all__ = ["BLOCK_BYTES", "FORMAT", "from_ggml"]

BLOCK_BYTES = 54

FORMAT = TernaryBlocks(
    name="tq1_0", layout="t5", bits=5 / 3 + 16 / BLOCK_K,
    summary="ternary, three in five bits, blocks (GGUF TQ1_0)",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5, default_scale="group",
    group=BLOCK_K, x_group=BLOCK_K, scale_type="f16",
)  # fmt: skip


def from_ggml(blocks: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.int8], F32]:
    """ggml's TQ1_0 rows uint8 [M, 54 n] -> (levels int8 [M, 256 n], scales float32 [M, n]).

    A byte is a fraction of 256 whose first five base-3 digits are levels + 1: 32 bytes hold levels
    32 i + m, 16 bytes 160 + 16 i + m, and 4 bytes of four digits 240 + 4 i + m; i is the digit.
    Any bytes are levels. RequestError for a wrong shape.
    """
    codes, scales = split_blocks(blocks, BLOCK_BYTES, FORMAT.name)
    M, n, _ = codes.shape
    pieces = []
    for first, size, digits in ((0, 32, 5), (32, 16, 5), (48, 4, 4)):
        powers = 3 ** np.arange(digits, dtype=np.uint8)[:, None]
        rest = codes[:, :, None, first : first + size] * powers.astype(np.uint8)  # modulo 256
        pieces.append((rest.astype(np.uint16) * 3 >> 8).reshape(M, n, -1))
    levels = np.concatenate(pieces, axis=2).astype(np.int8) - np.int8(1)
    return levels.reshape(M, n * BLOCK_K), scales
