"""iq4_nl: GGUF's four-bit blocks of sixteen uneven levels, an f16 scale for every 32 k."""

from __future__ import annotations

from sterna.formats.level_tables import codebook, of_levels

__all__ = ["CODEBOOK", "FORMAT", "LEVELS"]

#: ggml's, the same for iq4_xs: closer to each other around 0.
LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
CODEBOOK = codebook(LEVELS)

FORMAT = of_levels("iq4_nl", LEVELS, "sixteen uneven levels, blocks (GGUF IQ4_NL)")
