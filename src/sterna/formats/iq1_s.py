"""iq1_s: GGUF's tables of 2048 times eight ternary weights, a shift and a scale for every 32 k."""

from __future__ import annotations

from sterna.formats.indexed import iq1

FORMAT = iq1("iq1_s", 32, 1.59375)
