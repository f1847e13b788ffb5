"""iq2_xs: GGUF's tables of 512 times eight weights, a scale for every 16 k."""

from __future__ import annotations

from sterna.formats.indexed import iq2

FORMAT = iq2("iq2_xs", 16, 2.3125)
