"""The base of formats of powers of two: levels that are powers, as nibbles or words in tiles.

A weight is sign * 2^e * scale. See docs/explanation/power-of-two.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index, half_or_smallest
from sterna.formats.base import Format
from sterna.formats.pot_methods import MAX_EXPONENT, quantizer
from sterna.formats.power_of_two import PotLevels, check_scale

__all__ = ["PowerFloats", "PowerLevels", "Powers"]


@dataclass(frozen=True, eq=False)
class Powers(Format):
    """Rounding by a method of formats.pot_methods."""

    method: str = "nearest"

    @property
    def max_exponent(self) -> int:
        """The largest e of sign * 2^e: the exponent of the largest level."""
        assert self.codebook is not None
        return self.codebook.high.bit_length() - 1

    @property
    def has_zero(self) -> bool:
        """Whether 0 is a level."""
        return self.codebook is not None and 0 in self.codebook.levels

    def with_method(self, method: str) -> Powers:
        """Return this format with another rounding; RequestError for levels that it lacks."""
        quantizer(method, self.max_exponent, self.has_zero, self.name)
        return replace(self, method=method)

    def check_scales(self, scales: npt.NDArray[Any], M: int, K: int) -> F32:
        """Return the scales as they are packed; RequestError names a scale that is not positive.

        A group may have the scale 0: its weights are then 0, which the levels may lack. Other
        scales that f16 would round to 0 become its smallest number.
        """
        unchecked = np.asarray(scales)
        if not self.scales.group:
            check_scale(unchecked, M, K, self.name)
            return super().check_scales(unchecked, M, K)
        check_scale(np.where(unchecked == 0, 1, unchecked), M, K, self.name)
        return super().check_scales(half_or_smallest(np.asarray(unchecked, np.float32)), M, K)

    def powers(self, w: F32, scale: str | None) -> PotLevels:
        """Round w float32 [M, K]."""
        rule = quantizer(self.method, self.max_exponent, self.has_zero, self.name)
        return rule(w, scale or self.scales.default)


class PowerLevels(Powers):
    """Integer levels; tiles hold their nibbles."""

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w float32 [M, K] to levels [M, K] by the format's method; scale () or (M,)."""
        assert self.codebook is not None
        made = self.powers(w, scale)
        return made.levels().astype(self.codebook.dtype), made.scale


@dataclass(frozen=True, eq=False)
class PowerFloats(Powers):
    """Float values sign * 2^e, low <= e <= high, and a scale for each row."""

    low: int = 0
    high: int = 0

    @property
    def max_exponent(self) -> int:
        """The largest that a value has."""
        return self.high

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w float32 [M, K] to values sign * 2^e, float32 [M, K], and a scale () or (M,).

        The format's method is used. If exponents may be negative, the largest is 0, so products
        stay as small as w's.
        """
        made = self.powers(w, scale)
        shift = min(MAX_EXPONENT, -self.low)
        values = np.ldexp(made.levels(), -shift)
        return values, np.asarray(np.ldexp(made.scale, shift), np.float32)

    def exponents(self, values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
        """Return e int32 [M, K] of values sign * 2^e; RequestError names the first other value."""
        mantissa, exponent = np.frexp(np.asarray(values, np.float32))
        e = exponent - 1
        wrong = (np.abs(mantissa) != 0.5) | (e < self.low) | (e > self.high)
        if wrong.any():
            at = first_index(wrong)
            raise RequestError(
                f"{self.name}: weights must be a power of two from 2^{self.low} to 2^{self.high}, "
                f"or its negative, times the scale, but element {at} is {values[at]}; "
                "use ops.quantize for real weights"
            )
        return np.asarray(e, np.int32)
