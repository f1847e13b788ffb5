"""q5_1: GGUF's five-bit blocks with minima: levels 0..31, two f16 for every 32 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.q4_1 import OverRange
from sterna.formats.scales import GroupScales

FORMAT = OverRange(
    name="q5_1",
    layout=Layout("b5"),
    bits=6.0,
    summary="five-bit blocks with a minimum (GGUF Q5_1)",
    codebook=Codebook(range(32), offset=0),
    scales=GroupScales(32, minima=True),
    searched=True,
)
