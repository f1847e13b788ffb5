"""tmac2_0: ternary weights, two bits, by lookup of bit planes in rounded tables (T-MAC's)."""

from __future__ import annotations

from sterna.formats.lookup import RoundedLookup

FORMAT = RoundedLookup(
    name="tmac2_0", layout="tmac2_0", bits=2.0, summary="ternary, lookup by bit, rounded tables",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5, lookup=4, planes=2,
    group_scales=False,
)  # fmt: skip
