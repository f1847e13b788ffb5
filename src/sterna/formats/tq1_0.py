"""tq1_0: GGUF's smaller ternary blocks in the tiles of t5, an f16 scale for every 256 k."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales
from sterna.formats.tq2_0 import BLOCK_K, TernaryBlockFormat

FORMAT = TernaryBlockFormat(
    name="tq1_0",
    layout=Layout("t5"),
    bits=5 / 3 + 16 / BLOCK_K,
    summary="ternary, three in five bits, blocks (GGUF TQ1_0)",
    codebook=TERNARY,
    scales=GroupScales(BLOCK_K, x_group=BLOCK_K),
    instead="q4_0",
)
