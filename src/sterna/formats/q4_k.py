"""q4_k: GGUF's four-bit super-blocks: levels 0..15, scale and minimum of six bits per 32 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales

FORMAT = KQuant(
    name="q4_k",
    layout=Layout("b4"),
    bits=4.625,
    summary="four-bit super-blocks (GGUF Q4_K)",
    codebook=Codebook(range(16), offset=0),
    scales=SuperBlockScales(32, scale_range=(0, 63), minimum_range=(0, 63)),
    instead="q5_0",
    searched=True,
)
