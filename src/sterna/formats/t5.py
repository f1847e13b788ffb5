"""t5: ternary weights {-1, 0, 1}, three in five bits."""

from __future__ import annotations

from sterna.formats.i2 import Ternary

FORMAT = Ternary(
    name="t5", layout="t5", bits=5 / 3, summary="ternary, three weights in five bits",
    levels=(-1, 1), offset=1, step=1, z2=2, unit=0.5,
)  # fmt: skip
