"""q1_0: GGUF's binary blocks: a sign for each weight, an f16 scale for every 128 k."""

from __future__ import annotations

from dataclasses import replace

from sterna.formats import i1
from sterna.formats.scales import GroupScales

FORMAT = replace(
    i1.FORMAT,
    name="q1_0",
    bits=1.125,
    summary="binary, one bit, blocks (GGUF Q1_0)",
    scales=GroupScales(128),
)
