"""nf2: NormalFloat of two bits, four levels at quantiles of a normal distribution.

The construction is nf4's (LoftQ, arXiv 2310.08659, has it for two bits): 0, one level below it and
two above.
"""

from __future__ import annotations

from sterna.formats.level_tables import nearest_levels, of_levels

__all__ = ["FORMAT", "VALUES"]

VALUES = (-1.0, 0.0, 0.33791519352165506, 1.0)

FORMAT = of_levels(
    "nf2", nearest_levels(VALUES)[0], "NormalFloat of two bits", group=64, instead="nf2:g32"
)
