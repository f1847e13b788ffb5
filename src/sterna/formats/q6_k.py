"""q6_k: GGUF's six-bit super-blocks: levels -32..31, a scale of eight bits for every 16 k."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.kquants import KQuant
from sterna.formats.layout import Layout
from sterna.formats.scales import SuperBlockScales

FORMAT = KQuant(
    name="q6_k",
    layout=Layout("b6"),
    bits=6.5625,
    summary="six-bit super-blocks (GGUF Q6_K)",
    codebook=Codebook(range(-32, 32), offset=32),
    scales=SuperBlockScales(16, scale_range=(-128, 127)),
    instead="q8_0",
    searched=True,
)
