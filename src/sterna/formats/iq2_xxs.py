"""iq2_xxs: GGUF's tables of 256 times eight weights, a scale for every 32 k."""

from __future__ import annotations

from sterna.formats.indexed import iq2

FORMAT = iq2("iq2_xxs", 32, 2.0625)
