"""iq3_s: GGUF's tables of 512 times four weights, a scale for every 32 k."""

from __future__ import annotations

from sterna.formats.indexed import iq3

FORMAT = iq3("iq3_s", tuple(range(1, 16, 2)), 1.0, 3.4375)
