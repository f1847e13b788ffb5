"""iq2_kl: ik_llama.cpp's pairs of eight uneven levels, a scale of six bits for every 32 k.

A file has 32 of the 64 pairs.
"""

from __future__ import annotations

from sterna.formats.ik_quants import IQ3, of_table

FORMAT = of_table("iq2_kl", IQ3[:8], 32, (-32, 31))
