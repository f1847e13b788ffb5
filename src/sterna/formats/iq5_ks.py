"""iq5_ks: the levels of iq5_k, an odd scale for each 32 k, float32 d.

A file has one d for a row. Kernels that multiply bytes have groups of 16 k: two have one scale.
"""

from __future__ import annotations

from sterna.formats.ik_quants import IQ5, IQ5_SHIFT, of_bytes
from sterna.formats.scales import SuperBlockScales

FORMAT = of_bytes(
    "iq5_ks", IQ5, IQ5_SHIFT, SuperBlockScales(16, scale_range=(-127, 127), wide=True)
)
