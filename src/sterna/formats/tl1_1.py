"""tl1_1: ternary weights, two in four bits, by lookup in exact tables (bitnet.cpp's TL1_1)."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.i2 import Ternary
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = Ternary(
    name="tl1_1", layout=Layout("tl1_1"), bits=2.0,
    summary="ternary, lookup by two, exact tables",
    codebook=TERNARY, scales=RowScales("tensor"),
)  # fmt: skip
