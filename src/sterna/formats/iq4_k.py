"""iq4_k: the levels of iq4_nl, which each 16 k may shift by 4, and a scale of six bits for them."""

from __future__ import annotations

from sterna.formats.ik_quants import SHIFT, shifted
from sterna.formats.scales import SuperBlockScales

FORMAT = shifted(
    "iq4_k",
    SuperBlockScales(16, scale_range=(-32, 31), minimum_range=(-32 * SHIFT, 31 * SHIFT)),
)
