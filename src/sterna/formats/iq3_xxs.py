"""iq3_xxs: GGUF's tables of 256 times four weights, a scale for every 32 k; levels are halved."""

from __future__ import annotations

from sterna.formats.indexed import iq3

FORMAT = iq3("iq3_xxs", (2, 6, 10, 14, 18, 22, 26, 31), 1 / 2, 3.0625)
