"""tl2_1: ternary weights, three in five bits, by lookup in exact tables (bitnet.cpp's TL2_1)."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.i2 import Ternary
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = Ternary(
    name="tl2_1", layout=Layout("tl2_1"), bits=5 / 3,
    summary="ternary, lookup by three, exact tables",
    codebook=TERNARY, scales=RowScales("tensor"),
)  # fmt: skip
