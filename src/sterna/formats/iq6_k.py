"""iq6_k: 64 uneven levels, which each 16 k may shift by 1, and a scale of eight bits for them."""

from __future__ import annotations

from sterna.formats.ik_quants import IQ6, IQ6_SHIFT, of_bytes
from sterna.formats.scales import SuperBlockScales

FORMAT = of_bytes("iq6_k", IQ6, IQ6_SHIFT, SuperBlockScales(16, scale_range=(-128, 127)))
