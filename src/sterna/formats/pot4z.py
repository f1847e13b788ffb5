"""pot4z: zero and powers of two +-1 to +-64 in four bits, for int8 activations."""

from __future__ import annotations

from sterna.formats.pot_levels import PowerLevels

# By nibble: sign << 3 | m for sign * 2^(m - 1), or 0 where m is 0.
LEVELS = tuple(sign * (1 << m >> 1) for sign in (1, -1) for m in range(8))

FORMAT = PowerLevels(
    name="pot4z", layout="pot4z", bits=4.0, summary="zero and powers of two, four bits",
    levels=(-64, 64), codebook=tuple(sorted(set(LEVELS))), nibbles=LEVELS, offset=0, step=1, z2=128,
    unit=0.5, default_scale="row",
)  # fmt: skip
