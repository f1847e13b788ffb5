"""iq1_m: GGUF's tables of 2048 times eight ternary weights, shifted, a scale for every 16 k."""

from __future__ import annotations

from sterna.formats.indexed import iq1

FORMAT = iq1("iq1_m", 16, 1.75)
