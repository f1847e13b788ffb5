"""nf4: QLoRA's four-bit NormalFloat, sixteen levels at quantiles of a normal distribution.

bitsandbytes' table (arXiv 2305.14314, appendix E) is of floats from -1 to 1. Levels are these in
int8, at a distance of 0.0016 of the largest in the mean square; docs/reference/formats.md says what
that loses.
"""

from __future__ import annotations

from sterna.formats.level_tables import nearest_levels, of_levels

__all__ = ["FORMAT", "VALUES"]

VALUES = (
    -1.0,
    -0.6961928009986877,
    -0.5250730514526367,
    -0.39491748809814453,
    -0.28444138169288635,
    -0.18477343022823334,
    -0.09105003625154495,
    0.0,
    0.07958029955625534,
    0.16093020141124725,
    0.24611230194568634,
    0.33791524171829224,
    0.44070982933044434,
    0.5626170039176941,
    0.7229568362236023,
    1.0,
)

FORMAT = of_levels(
    "nf4",
    nearest_levels(VALUES)[0],
    "NormalFloat of four bits (QLoRA)",
    group=64,
    instead="nf4:g32",
)
