"""tq1_0: GGUF's smaller ternary blocks in the tiles of t5, an f16 scale for every 256 k."""

from __future__ import annotations

from sterna.formats.tq2_0 import BLOCK_K, TernaryBlocks

FORMAT = TernaryBlocks(
    name="tq1_0", layout="t5", bits=5 / 3 + 16 / BLOCK_K,
    summary="ternary, three in five bits, blocks (GGUF TQ1_0)",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5, default_scale="group",
    group=BLOCK_K, x_group=BLOCK_K, scale_type="f16",
)  # fmt: skip
