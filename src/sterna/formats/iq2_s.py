"""iq2_s: GGUF's tables of 1024 times eight weights, a scale for every 16 k."""

from __future__ import annotations

from sterna.formats.indexed import iq2

FORMAT = iq2("iq2_s", 16, 2.5625)
