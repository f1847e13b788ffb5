"""q3_k: GGUF's three-bit super-blocks: levels -4..3, a scale of six bits for every 16 k."""

from __future__ import annotations

from sterna.formats.kquants import KQuant

FORMAT = KQuant(
    name="q3_k", layout="b3", bits=3.5625, summary="three-bit super-blocks (GGUF Q3_K)",
    levels=(-4, 3), offset=4, step=1, z2=8, unit=0.5, default_scale="group",
    group=16, scale_type="super8", minima=False, scale_range=(-32, 31), minimum_range=(0, 0),
)  # fmt: skip
