"""pot4: powers of two +-1 to +-128 in four bits (E3:P2), for int8 activations."""

from __future__ import annotations

from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.pot_levels import PowerLevels
from sterna.formats.scales import RowScales

# The level of nibble sign << 3 | e.
LEVELS = tuple(sign << e for sign in (1, -1) for e in range(8))

FORMAT = PowerLevels(
    name="pot4",
    layout=Layout("pot4"),
    bits=4.0,
    summary="powers of two, four bits (E3:P2)",
    codebook=Codebook(tuple(sorted(LEVELS)), offset=128, by_code=LEVELS),
    scales=RowScales("row"),
)
