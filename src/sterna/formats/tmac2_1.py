"""tmac2_1: ternary weights, two bits, by lookup of bit planes in exact tables (T-MAC's)."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.i2 import Ternary
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = Ternary(
    name="tmac2_1", layout=Layout("tmac2_1"), bits=2.0,
    summary="ternary, lookup by bit, exact tables",
    codebook=TERNARY, scales=RowScales("tensor"),
)  # fmt: skip
