"""fp4: bitsandbytes' four-bit floats, a sign and eight magnitudes.

The magnitudes are 0 and 1 / 192, and from 1 / 6 to 1 floats of one bit of mantissa. Levels are 120
times these: all exact but the smallest, which is 1 in place of 0.6.
"""

from __future__ import annotations

from sterna.formats.level_tables import nearest_levels, of_levels

__all__ = ["FORMAT", "VALUES"]

MAGNITUDES = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
VALUES = (*MAGNITUDES, *(-m for m in MAGNITUDES))

FORMAT = of_levels(
    "fp4",
    nearest_levels(VALUES)[0],
    "four-bit floats (bitsandbytes FP4)",
    group=64,
    instead="fp4:g32",
)
