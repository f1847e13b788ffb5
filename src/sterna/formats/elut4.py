"""elut4: the levels of i2p by element-wise lookup, two in four bits (bitnet.cpp, table 3)."""

from __future__ import annotations

from sterna.formats.i2p import FourLevel

FORMAT = FourLevel(
    name="elut4", layout="elut4", bits=2.0, summary="four levels, lookup by two, exact tables",
    levels=(-3, 3), offset=3, step=2, z2=3, unit=0.25, default_scale="row",
    group_scales=False,
)  # fmt: skip
