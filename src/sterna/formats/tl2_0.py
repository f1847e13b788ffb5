"""tl2_0: ternary weights, three in five bits, by lookup in rounded tables (bitnet.cpp's TL2_0)."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.i2 import Ternary
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = Ternary(
    name="tl2_0", layout=Layout("tl2_0"), bits=5 / 3,
    summary="ternary, lookup by three, rounded tables",
    codebook=TERNARY, scales=RowScales("tensor"), lossless=False,
)  # fmt: skip
