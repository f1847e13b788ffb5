"""elut4: the levels of i2p by element-wise lookup, two in four bits (bitnet.cpp, table 3)."""

from __future__ import annotations

from sterna.formats.i2p import LEVELS, FourLevel
from sterna.formats.layout import Layout
from sterna.formats.scales import RowScales

FORMAT = FourLevel(
    name="elut4", layout=Layout("elut4"), bits=2.0,
    summary="four levels, lookup by two, exact tables",
    codebook=LEVELS, scales=RowScales("row"),
)  # fmt: skip
