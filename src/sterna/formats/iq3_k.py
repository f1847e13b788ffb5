"""iq3_k: ik_llama.cpp's two times eight uneven levels, an odd scale for every 16 k."""

from __future__ import annotations

from sterna.formats.ik_quants import IQ3, of_table

FORMAT = of_table("iq3_k", IQ3, 16, (-31, 31))
