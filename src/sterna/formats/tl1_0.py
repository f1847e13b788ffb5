"""tl1_0: ternary weights, two in four bits, by lookup in rounded tables (bitnet.cpp's TL1_0)."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.i2 import Ternary
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = Ternary(
    name="tl1_0", layout=Layout("tl1_0"), bits=2.0,
    summary="ternary, lookup by two, rounded tables",
    codebook=TERNARY, scales=RowScales("tensor"), lossless=False,
)  # fmt: skip
