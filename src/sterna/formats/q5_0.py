"""q5_0: GGUF's five-bit blocks, levels -16..15 with an f16 scale for every 32 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.q4_0 import LargestAtLow
from sterna.formats.scales import GroupScales

FORMAT = LargestAtLow(
    name="q5_0",
    layout=Layout("b5"),
    bits=5.5,
    summary="five-bit blocks (GGUF Q5_0)",
    codebook=Codebook(range(-16, 16), offset=16),
    scales=GroupScales(32),
    searched=True,
)
