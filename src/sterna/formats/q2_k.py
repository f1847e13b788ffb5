"""q2_k: GGUF's two-bit super-blocks: levels 0..3, scale and minimum of four bits per 16 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales

FORMAT = KQuant(
    name="q2_k",
    layout=Layout("b2"),
    bits=2.625,
    summary="two-bit super-blocks (GGUF Q2_K)",
    codebook=Codebook(range(4), offset=0),
    scales=SuperBlockScales(16, scale_range=(0, 15), minimum_range=(0, 15), nibbles=True),
    instead="q4_0",
    searched=True,
)
