"""Float formats that keep values as they are, as words of a float type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.base import Format

__all__ = ["FloatFormat"]


@dataclass(frozen=True, eq=False)
class FloatFormat(Format, ABC):
    """A float type, whose words kernels pack as they are.

    word: numpy's type for it, float32 or uint16; exponent: bits of a word that are all set in an
    infinity or NaN; wider: the formats for values beyond its range.
    """

    word: type[np.generic] = np.uint16
    exponent: int = 0
    wider: str = "f32"

    @property
    def bits_type(self) -> np.dtype[Any]:
        """Unsigned integers of a word's size."""
        return np.dtype(f"u{np.dtype(self.word).itemsize}")

    @abstractmethod
    def words(self, x: F32) -> npt.NDArray[Any]:
        """Round float32 [...] to the nearest word, half to even; beyond the range to infinity."""

    @abstractmethod
    def floats(self, words: npt.NDArray[Any]) -> F32:
        """Convert words [...] to the float32 [...] that they encode, exactly."""

    def is_finite(self, words: npt.NDArray[Any], threads: int) -> bool:
        """Whether words, of any numpy type of their size, hold no infinity and no NaN."""
        return not _native.has_non_finite(words, self.exponent, threads)

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Encode words or values [M, K] as words [M, K]; NonFiniteError for values out of range."""
        if values.dtype == self.word:
            return values
        with np.errstate(over="ignore"):  # reported below
            x = np.asarray(values, dtype=np.float32)
            words = self.words(x)
        bits = words.view(self.bits_type)
        if (wrong := (bits & self.exponent) == self.exponent).any():
            at = first_index(wrong)
            raise NonFiniteError(
                f"{self.name}: weights must be finite and in range, but element {at} is {x[at]!s}; "
                f"use {self.wider}"
            )
        return words

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether all packed words of an untrusted file are finite."""
        return self.is_finite(codes.view(self.bits_type), threads)
