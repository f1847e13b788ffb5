"""tl1_1: ternary weights, two in four bits, by lookup in exact tables (bitnet.cpp's TL1_1)."""

from __future__ import annotations

from sterna.formats.i2 import Ternary

FORMAT = Ternary(
    name="tl1_1", layout="tl1_1", bits=2.0, summary="ternary, lookup by two, exact tables",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
    group_scales=False,
)  # fmt: skip
