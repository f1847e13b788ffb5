"""q3_k: GGUF's three-bit super-blocks: levels -4..3, a scale of six bits for every 16 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales

FORMAT = KQuant(
    name="q3_k",
    layout=Layout("b3"),
    bits=3.5625,
    summary="three-bit super-blocks (GGUF Q3_K)",
    codebook=Codebook(range(-4, 4), offset=4),
    scales=SuperBlockScales(16, scale_range=(-32, 31)),
    instead="q4_0",
    searched=True,
)
