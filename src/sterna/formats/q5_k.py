"""q5_k: GGUF's five-bit super-blocks: levels 0..31, scale and minimum of six bits per 32 k."""

from __future__ import annotations

from sterna.formats.kquants import KQuant

FORMAT = KQuant(
    name="q5_k", layout="b5", bits=5.625, summary="five-bit super-blocks (GGUF Q5_K)",
    levels=(0, 31), offset=0, step=1, z2=0, unit=0.5, default_scale="group",
    group=32, scale_type="super8", minima=True, scale_range=(0, 63), minimum_range=(0, 63),
)  # fmt: skip
