"""t5: ternary weights {-1, 0, 1}, three in five bits."""

from __future__ import annotations

from sterna.formats.codebook import TERNARY
from sterna.formats.i2 import Ternary
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = Ternary(
    name="t5",
    layout=Layout("t5"),
    bits=5 / 3,
    summary="ternary, three weights in five bits",
    codebook=TERNARY,
    scales=RowScales("tensor"),
)
