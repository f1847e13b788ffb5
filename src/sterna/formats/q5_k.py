"""q5_k: GGUF's five-bit super-blocks: levels 0..31, scale and minimum of six bits per 32 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales

FORMAT = KQuant(
    name="q5_k",
    layout=Layout("b5"),
    bits=5.625,
    summary="five-bit super-blocks (GGUF Q5_K)",
    codebook=Codebook(range(32), offset=0),
    scales=SuperBlockScales(32, scale_range=(0, 63), minimum_range=(0, 63)),
    instead="q5_1",
    searched=True,
)
