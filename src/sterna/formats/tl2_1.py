"""tl2_1: ternary weights, three in five bits, by lookup in exact tables (bitnet.cpp's TL2_1)."""

from __future__ import annotations

from sterna.formats.i2 import Ternary

FORMAT = Ternary(
    name="tl2_1", layout="tl2_1", bits=5 / 3, summary="ternary, lookup by three, exact tables",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
    group_scales=False,
)  # fmt: skip
