"""pot4: powers of two +-1 to +-128 in four bits (E3:P2), for int8 activations."""

from __future__ import annotations

from sterna.formats.pot_levels import PowerLevels

# By nibble: sign << 3 | e.
LEVELS = tuple(sign << e for sign in (1, -1) for e in range(8))

FORMAT = PowerLevels(
    name="pot4", layout="pot4", bits=4.0, summary="powers of two, four bits (E3:P2)",
    levels=(-128, 128), codebook=tuple(sorted(LEVELS)), nibbles=LEVELS, offset=0, step=1, z2=256,
    unit=0.5, default_scale="row",
)  # fmt: skip
