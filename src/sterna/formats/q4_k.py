"""q4_k: GGUF's four-bit super-blocks: levels 0..15, scale and minimum of six bits per 32 k."""

from __future__ import annotations

from sterna.formats.kquants import KQuant

FORMAT = KQuant(
    name="q4_k", layout="b4", bits=4.625, summary="four-bit super-blocks (GGUF Q4_K)",
    levels=(0, 15), offset=0, step=1, z2=0, unit=0.5, default_scale="group",
    group=32, scale_type="super8", minima=True, scale_range=(0, 63), minimum_range=(0, 63),
)  # fmt: skip
