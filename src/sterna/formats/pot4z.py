"""pot4z: zero and powers of two +-1 to +-64 in four bits, for int8 activations."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.pot_levels import PowerLevels
from sterna.formats.scales import RowScales

# The level of nibble sign << 3 | m: sign * 2^(m - 1), or 0 where m is 0.
LEVELS = tuple(sign * (1 << m >> 1) for sign in (1, -1) for m in range(8))

FORMAT = PowerLevels(
    name="pot4z",
    layout=Layout("pot4z"),
    bits=4.0,
    summary="zero and powers of two, four bits",
    codebook=Codebook(tuple(sorted(set(LEVELS))), offset=64, by_code=LEVELS),
    scales=RowScales("row"),
)
