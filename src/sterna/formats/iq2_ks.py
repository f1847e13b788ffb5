"""iq2_ks: ik_llama.cpp's two times four uneven levels, a scale of five bits for every 32 k."""

from __future__ import annotations

from sterna.formats.ik_quants import IQ2, of_table

FORMAT = of_table("iq2_ks", IQ2, 32, (-16, 15))
