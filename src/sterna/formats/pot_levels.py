"""What formats of powers of two share: levels that are powers, nibbles or words in the tiles.

A weight is sign * 2^e * scale. See docs/power-of-two.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32
from sterna.formats.base import Format

__all__ = ["PowerFloats", "PowerLevels", "nearest_powers"]


def nearest_powers(w: F32, scale: str, top: int, zero: bool) -> tuple[F32, F32]:
    """Round w [M, K] to sign * 2^e, e = 0..top, or 0 where there is a zero: (values, scale)."""
    axis = 1 if scale == "row" else None
    s = np.asarray(np.abs(w).max(axis=axis, initial=0.0) * np.float32(2.0**-top), np.float32)
    s = np.where(s > 0, s, np.float32(1)).astype(np.float32)
    ratio = np.abs(w) / (s[:, None] if axis else s)
    mantissa, exponent = np.frexp(ratio)  # of 0: 0, 0
    e = np.clip(exponent - (mantissa < np.float32(2**-0.5)), 0, top)
    values = np.ldexp(np.where(np.signbit(w), np.float32(-1), np.float32(1)), e)
    if zero:
        values = np.where(ratio < 0.5, np.float32(0), values)
    return values, s


@dataclass(frozen=True)
class PowerLevels(Format):
    """Integer levels: the codebook's in order of their nibbles, which are what the tiles hold."""

    nibbles: tuple[int, ...] = ()  # the level of each

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
        """Levels -> their nibbles; of two that stand for 0 the first."""
        low, high = min(self.nibbles), max(self.nibbles)
        table = np.zeros(high - low + 1, np.int8)
        for nibble, level in reversed(list(enumerate(self.nibbles))):
            table[level - low] = nibble
        return table[values.astype(np.int16) - low]

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w [M, K] to the nearest powers, in the logarithm; docs/power-of-two.md."""
        top = max(self.nibbles).bit_length() - 1
        levels, s = nearest_powers(w, scale or self.default_scale, top, 0 in self.nibbles)
        return levels.astype(self.level_type), s


@dataclass(frozen=True)
class PowerFloats(Format):
    """Float values sign * 2^e, low <= e <= high, and a scale for each row."""

    low: int = 0
    high: int = 0

    @property
    def value(self) -> float:
        """What a value of 1 stands for, times the scale."""
        return 1.0

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w [M, K] to the nearest powers, in the logarithm; docs/power-of-two.md."""
        values, s = nearest_powers(w, scale or self.default_scale, self.high - self.low, zero=False)
        return np.ldexp(values, self.low), np.asarray(np.ldexp(s, -self.low), np.float32)

    def exponents(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """The e of values sign * 2^e; RequestError names the first that is none of the format's."""
        mantissa, exponent = np.frexp(np.asarray(values, np.float32))
        e = exponent - 1
        wrong = (np.abs(mantissa) != 0.5) | (e < self.low) | (e > self.high)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise RequestError(
                f"{self.name}: weights must be a power of two from 2^{self.low} to 2^{self.high}, "
                f"or minus one, times the scale, but element {at} is {values[at]}; "
                "use ops.quantize for real weights"
            )
        return np.asarray(e, np.int32)
