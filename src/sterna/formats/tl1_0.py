"""tl1_0: ternary weights, two in four bits, by lookup in rounded tables (bitnet.cpp's TL1_0)."""

from __future__ import annotations

from sterna.formats.lookup import RoundedLookup

FORMAT = RoundedLookup(
    name="tl1_0", layout="tl1_0", bits=2.0, summary="ternary, lookup by two, rounded tables",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
    group_scales=False,
)  # fmt: skip
