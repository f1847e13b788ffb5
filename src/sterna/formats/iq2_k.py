"""iq2_k: ik_llama.cpp's two times four uneven levels, a scale of four bits for every 16 k."""

from __future__ import annotations

from sterna.formats.ik_quants import IQ2, of_table

FORMAT = of_table("iq2_k", IQ2, 16, (-8, 7))
