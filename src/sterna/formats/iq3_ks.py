"""iq3_ks: ik_llama.cpp's two times eight uneven levels, a scale of five bits for every 32 k."""

from __future__ import annotations

from sterna.formats.ik_quants import IQ3, of_table

FORMAT = of_table("iq3_ks", IQ3, 32, (-16, 15))
