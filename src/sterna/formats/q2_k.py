"""q2_k: GGUF's two-bit super-blocks: levels 0..3, scale and minimum of four bits per 16 k."""

from __future__ import annotations

from sterna.formats.kquants import KQuant

FORMAT = KQuant(
    name="q2_k", layout="b2", bits=2.625, summary="two-bit super-blocks (GGUF Q2_K)",
    levels=(0, 3), offset=0, step=1, z2=0, unit=0.5, default_scale="group",
    group=16, scale_type="super4", minima=True, scale_range=(0, 15), minimum_range=(0, 15),
)  # fmt: skip
