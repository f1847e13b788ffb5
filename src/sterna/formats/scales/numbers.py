"""The number types of groups' scales."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.formats.arithmetic import F32, half_if_finite, half_or_smallest

__all__ = ["COARSE", "E4M3", "E8M0", "F16", "MAX_F16_WEIGHT", "ScaleNumber"]

COARSE = 2.0**-21  # of f16: below it they are whole multiples, 0 to 8, of the smallest
MAX_F16_WEIGHT = 2.0**40  # no level times a scale that is an f16 is as large
Array = npt.NDArray[Any]


class ScaleNumber(ABC):
    """A type of number, which the kernels know by its name.

    exponent: bits that are all set in an infinity or NaN. rule: which values it can hold, for a
    message. any_number: whether values are as dense as floats. coarse: scales below it have few
    bits, so rounding looks at them again. max_weight: every level times a scale is below this.
    """

    name: str
    dtype: np.dtype[Any]
    exponent: int
    rule: str
    any_number: bool
    coarse: float
    max_weight: float

    @abstractmethod
    def rounded(self, scales: F32) -> tuple[F32, npt.NDArray[np.bool_]]:
        """Finite scales -> (the values packed for them, whether they fit), both of their shape."""

    @abstractmethod
    def nearest(self, scales: F32) -> F32:
        """Round scales of any shape to the nearest values; keep scales that are too large."""

    @abstractmethod
    def lifted(self, scales: F32) -> F32:
        """Round as `nearest`, but values that would become 0 to the smallest of their sign."""

    @abstractmethod
    def encoded(self, scales: F32) -> Array:
        """Encode packed values, of any shape, as `dtype`."""

    @abstractmethod
    def decoded(self, typed: Array) -> F32:
        """Decode an array of `dtype`, of any shape, to the values."""

    def valid(self, lines: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether no number of these bytes is an infinity or NaN."""
        values = lines.view(f"u{self.dtype.itemsize}")
        return not _native.has_non_finite(values, self.exponent, threads)


class _Half(ScaleNumber):
    """IEEE half."""

    name, dtype, exponent = "f16", np.dtype(np.float16), 0x7C00
    rule, any_number, coarse = "at most 65504, as an f16", True, COARSE
    max_weight = MAX_F16_WEIGHT

    def rounded(self, scales: F32) -> tuple[F32, npt.NDArray[np.bool_]]:
        """Rounded to f16; up to 65504."""
        with np.errstate(over="ignore"):
            half = scales.astype(np.float16).astype(np.float32)
        return half, np.isfinite(half)

    def nearest(self, scales: F32) -> F32:
        return half_if_finite(scales)

    def lifted(self, scales: F32) -> F32:
        """Rounded to f16, 2^-24 at least."""
        return half_or_smallest(scales)

    def encoded(self, scales: F32) -> Array:
        return scales.astype(np.float16)

    def decoded(self, typed: Array) -> F32:
        return typed.astype(np.float32)


class _PowerOfTwo(ScaleNumber):
    """E8M0 of OCP Microscaling: a byte e for 2^(e - 127), of which 255 is NaN."""

    name, dtype, exponent = "e8m0", np.dtype(np.uint8), 0xFF
    rule, any_number, coarse = "2^-127 to 2^127", False, 0.0
    max_weight = np.inf

    def rounded(self, scales: F32) -> tuple[F32, npt.NDArray[np.bool_]]:
        """Return the scales, and which of them fit: powers of two from 2^-127."""
        mantissa, _ = np.frexp(scales)
        return scales, (mantissa == 0.5) & (scales >= np.float32(2.0**-127))

    def nearest(self, scales: F32) -> F32:
        """Round positive scales to 2^round(log2 scale)."""
        mantissa, exponent = np.frexp(scales)  # 1/2 to 1; not log2, whose last bits are libm's
        lower = mantissa < np.float32(np.sqrt(0.5))
        return np.asarray(np.ldexp(np.float32(1), exponent - lower), np.float32)

    def lifted(self, scales: F32) -> F32:
        """Round as `nearest`, since no power is 0."""
        return self.nearest(scales)

    def encoded(self, scales: F32) -> Array:
        """uint8; 0.5 * 2^e is 2^(e - 1)."""
        return (np.frexp(scales)[1] + 126).astype(np.uint8)

    def decoded(self, typed: Array) -> F32:
        return np.asarray(np.ldexp(np.float32(1), typed.astype(np.int32) - 127), np.float32)


class _EightBits(ScaleNumber):
    """E4M3 without its sign: a byte below 127, which is NaN."""

    name: str = "e4m3"
    dtype: np.dtype[Any] = np.dtype(np.uint8)
    exponent: int = 0x7F
    rule: str = "an E4M3 from 0 to 448"
    any_number: bool = False
    coarse: float = 0.0
    max_weight: float = np.inf
    most: float = 448.0

    def __init__(self) -> None:
        code = np.arange(127)
        mantissa, exponent = np.where(code < 8, code, code % 8 + 8), np.maximum(code // 8, 1) - 10
        self._values = np.ldexp(mantissa.astype(np.float32), exponent)
        self._middles = (self._values[1:] + self._values[:-1]) / 2

    def _code(self, scales: F32) -> npt.NDArray[np.intp]:
        """Find the nearest values of numbers, half to even; the largest for what is larger."""
        below, above = (np.searchsorted(self._middles, scales, side) for side in ("left", "right"))
        return np.where(below % 2 == 0, below, above)

    def rounded(self, scales: F32) -> tuple[F32, npt.NDArray[np.bool_]]:
        """Return the scales, and which of them fit."""
        return scales, self._values[self._code(scales)] == scales

    def nearest(self, scales: F32) -> F32:
        return np.asarray(np.where(scales > self.most, scales, self._values[self._code(scales)]))

    def lifted(self, scales: F32) -> F32:
        """Round as `nearest`, 2^-9 at least."""
        return np.asarray(np.maximum(self.nearest(scales), self._values[1]), np.float32)

    def encoded(self, scales: F32) -> Array:
        return self._code(scales).astype(np.uint8)

    def decoded(self, typed: Array) -> F32:
        """NaN for what is none."""
        return np.where(typed < 127, self._values[np.minimum(typed, 126)], np.float32(np.nan))

    def valid(self, lines: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether all bytes are numbers without a sign."""
        return int(lines.max(initial=0)) < self.exponent


F16: ScaleNumber = _Half()
E8M0: ScaleNumber = _PowerOfTwo()
E4M3 = _EightBits()
