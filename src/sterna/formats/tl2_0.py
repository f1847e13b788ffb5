"""tl2_0: ternary weights, three in five bits, by lookup in rounded tables (bitnet.cpp's TL2_0)."""

from __future__ import annotations

from sterna.formats.lookup import RoundedLookup

FORMAT = RoundedLookup(
    name="tl2_0", layout="tl2_0", bits=5 / 3, summary="ternary, lookup by three, rounded tables",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5, lookup=3, fit=48,
    group_scales=False,
)  # fmt: skip
