"""q6_k: GGUF's six-bit super-blocks: levels -32..31, a scale of eight bits for every 16 k."""

from __future__ import annotations

from sterna.formats.kquants import KQuant

FORMAT = KQuant(
    name="q6_k", layout="b6", bits=6.5625, summary="six-bit super-blocks (GGUF Q6_K)",
    levels=(-32, 31), offset=32, step=1, z2=64, unit=0.5, default_scale="group",
    group=16, scale_type="super8", minima=False, scale_range=(-128, 127), minimum_range=(0, 0),
)  # fmt: skip
