"""Float formats of few bits with a float32 scale for every few k of a row, which lies in the tiles.

A weight is code * scale, rounded once to float32, so that all sums are those of `f32`. Words are
uint16: a code, and above it a byte of the scale, of the first four k of each group. Rows of words
are whole groups, with zeros at the end.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.floats import FloatFormat
from sterna.formats.scales import NoScales

__all__ = ["GroupedFloats", "ScaledFloats"]

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
ROW_BLOCK = 16  # rows whose scales and codes lie together
SCALE_BYTES = 4


@dataclass(frozen=True)
class GroupedFloats(NoScales):
    """Scales that are part of the tiles: float32 for every `k` of a row."""

    k: int = 32

    @property
    def summary(self) -> str | None:
        """f32 per 32."""
        return f"f32 per {self.k}"


@dataclass(frozen=True, eq=False)
class ScaledFloats(FloatFormat):
    """A float type of few bits, with scales as GroupedFloats says.

    stored: the power of two with which stored scales are multiplied.
    """

    stored: float = 1.0

    @property
    def group(self) -> int:
        """Number of k that share a scale."""
        assert isinstance(self.scales, GroupedFloats)
        return self.scales.k

    @cached_property
    def values(self) -> F32:
        """The value of each code, float32; NaN where a code is no number."""
        values = self.code_values()
        values.flags.writeable = False
        return values

    @abstractmethod
    def code_values(self) -> F32:
        """Compute `values`."""

    @abstractmethod
    def nearest(self, x: npt.NDArray[np.float64]) -> U8:
        """Round numbers [...], at most the largest value in size, to codes, half to even."""

    def fits(self, scales: F32) -> bool:
        """Whether kernels can have these scales as they are."""
        with np.errstate(over="ignore"):
            stored = scales * np.float32(self.stored)
        return bool((np.isfinite(stored) & (stored / np.float32(self.stored) == scales)).all())

    def joined(self, codes: U8, scales: F32) -> U16:
        """Combine codes [M, K] and their scales [M, K / group] in words [M, K].

        The scales must fit (`fits`).
        """
        M, K = codes.shape
        words = codes.astype(np.uint16).reshape(M, K // self.group, self.group)
        stored = np.ascontiguousarray(scales * np.float32(self.stored), "<f4")
        in_bytes = stored.view(np.uint8).reshape(M, K // self.group, SCALE_BYTES)
        words[:, :, :SCALE_BYTES] |= in_bytes.astype(np.uint16) << np.uint16(8)
        return words.reshape(M, K)

    def parted(self, words: npt.NDArray[Any]) -> tuple[U8, F32]:
        """Return the codes [M, K] of words and the scales as kernels have them, [M, K / group]."""
        M, K = words.shape
        first = words.reshape(M, K // self.group, self.group)[:, :, :SCALE_BYTES]
        in_bytes = np.ascontiguousarray((first >> np.uint16(8)).astype(np.uint8))
        stored = in_bytes.view("<f4").reshape(M, K // self.group).astype(np.float32, copy=False)
        return (words & np.uint16(255)).astype(np.uint8), stored

    def words(self, x: F32) -> npt.NDArray[Any]:
        """Round float32 [M, K] to words; a group's largest |w| becomes the largest code."""
        x = np.pad(x, ((0, 0), (0, -x.shape[1] % self.group)))
        M, K = x.shape
        groups = x.reshape(M, K // self.group, self.group)
        top = np.float32(np.nanmax(self.values))
        scales = np.asarray(np.abs(groups).max(axis=2, initial=0.0) / top, np.float32)
        divided = np.divide(
            groups, scales[:, :, None], out=np.zeros(groups.shape), where=scales[:, :, None] > 0
        )
        codes = self.nearest(np.clip(divided, -top, top)).reshape(M, K)
        return self.joined(codes, scales)

    def floats(self, words: npt.NDArray[Any]) -> F32:
        """Convert words of whole groups to the float32 that kernels multiply with."""
        codes, stored = self.parted(words)
        M, K = codes.shape
        values = self.values[codes] * np.float32(1 / self.stored)
        groups = values.reshape(M, K // self.group, self.group) * stored[:, :, None]
        return np.asarray(groups, np.float32).reshape(M, K)

    def is_finite(self, words: npt.NDArray[Any], threads: int) -> bool:
        """Whether words [M, K] hold no infinity and no NaN, in codes or scales."""
        codes, stored = self.parted(words)
        return bool(np.isfinite(stored).all()) and not np.isnan(self.values[codes]).any()

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Encode words or values [M, K] as words of whole groups.

        NonFiniteError for values out of range.
        """
        if values.dtype == self.word:
            return values
        x = np.asarray(values, np.float32)
        top, most = float(np.nanmax(self.values)), float(np.finfo(np.float32).max)
        limit = min(top * (most / self.stored), most)
        if (wrong := ~np.isfinite(x) | (np.abs(x) > limit)).any():
            at = first_index(wrong)
            raise NonFiniteError(
                f"{self.name}: weights must be finite and in range, but element {at} is {x[at]!s}; "
                f"use {self.wider}"
            )
        return self.words(x)

    def codes_valid(self, codes: U8, threads: int) -> bool:
        """Whether all scales and codes of an untrusted file's tiles are finite."""
        blocks = codes.reshape(-1, ROW_BLOCK * (SCALE_BYTES + self.group))
        scales, of_weights = np.split(blocks, [ROW_BLOCK * SCALE_BYTES], axis=1)
        if not np.isfinite(np.ascontiguousarray(scales).view("<f4")).all():
            return False
        return not np.isnan(self.values[of_weights]).any()
