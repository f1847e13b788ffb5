"""tmac2_1: ternary weights, two bits, by lookup of bit planes in exact tables (T-MAC's)."""

from __future__ import annotations

from sterna.formats.i2 import Ternary

FORMAT = Ternary(
    name="tmac2_1", layout="tmac2_1", bits=2.0, summary="ternary, lookup by bit, exact tables",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
    group_scales=False,
)  # fmt: skip
