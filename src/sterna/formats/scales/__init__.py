"""Scale layouts, one file each: where the scales of a matrix lie, and what numbers they are."""

from __future__ import annotations

from sterna.formats.scales.base import ScaleLayout
from sterna.formats.scales.groups import GroupScales
from sterna.formats.scales.numbers import E8M0, F16
from sterna.formats.scales.rows import NoScales, RowScales
from sterna.formats.scales.superblocks import SuperBlockScales

__all__ = ["E8M0", "F16", "GroupScales", "NoScales", "RowScales", "ScaleLayout", "SuperBlockScales"]
