"""Scale layouts, one file each: where the scales of a matrix lie, and what numbers they are."""

from __future__ import annotations

from sterna.formats.scales.base import ScaleLayout
from sterna.formats.scales.groups import GroupScales
from sterna.formats.scales.microblocks import MICRO_K, MicroBlockScales
from sterna.formats.scales.numbers import E4M3, E8M0, F16
from sterna.formats.scales.rows import NoScales, RowScales
from sterna.formats.scales.superblocks import SuperBlockScales

__all__ = [
    "E4M3",
    "E8M0",
    "F16",
    "MICRO_K",
    "GroupScales",
    "MicroBlockScales",
    "NoScales",
    "RowScales",
    "ScaleLayout",
    "SuperBlockScales",
]
