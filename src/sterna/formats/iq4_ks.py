"""iq4_ks: the levels of iq4_nl, which each 32 k may shift by 4, an odd scale for them, float32 d.

A file has one d for a row.
"""

from __future__ import annotations

from sterna.formats.ik_quants import shifted
from sterna.formats.scales import SuperBlockScales

FORMAT = shifted(
    "iq4_ks",
    SuperBlockScales(32, scale_range=(-127, 127), minimum_range=(-127, 127), wide=True),
)
