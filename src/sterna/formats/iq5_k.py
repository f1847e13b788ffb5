"""iq5_k: 32 uneven levels, which each 16 k may shift by 2, and a scale of six bits for them."""

from __future__ import annotations

from sterna.formats.ik_quants import IQ5, IQ5_SHIFT, of_bytes
from sterna.formats.scales import SuperBlockScales

FORMAT = of_bytes("iq5_k", IQ5, IQ5_SHIFT, SuperBlockScales(16, scale_range=(-32, 31)))
