"""A codebook: the levels of an integer format, their values and their codes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError, RequestError
from sterna.formats.arithmetic import first_index

__all__ = ["TERNARY", "Codebook"]

FEW = 5  # levels that a message lists one by one


@dataclass(frozen=True)
class Codebook:
    """Levels, which are whole numbers; a weight is `value` * level * its scale.

    levels: in ascending order, a range if they are evenly spaced by 1 or 2.
    offset: a code is (level + offset) / step, unless `by_code` has the level of each code; of two
    codes for one level the first is packed.
    """

    levels: range | tuple[int, ...]
    offset: int
    value: float = 1.0
    by_code: tuple[int, ...] = ()

    @property
    def low(self) -> int:
        """The lowest level."""
        return self.levels[0]

    @property
    def high(self) -> int:
        """The highest level."""
        return self.levels[-1]

    @property
    def ends(self) -> tuple[int, int]:
        """The lowest and the highest level."""
        return self.low, self.high

    @property
    def is_even(self) -> bool:
        """Whether levels are evenly spaced."""
        return isinstance(self.levels, range)

    @cached_property
    def is_mirrored(self) -> bool:
        """Whether the negative of each level is one as well."""
        return self.has_all(-level for level in self.levels)

    @property
    def step(self) -> int:
        """The step from a level to the next, 1 or 2; 1 if levels are not evenly spaced."""
        return self.levels.step if isinstance(self.levels, range) else 1

    @property
    def zero_x2(self) -> int:
        """Kernels compute t = 2 * sum(code * x) - zero_x2 * sum(x), of half steps."""
        return 2 * self.offset // self.step

    @property
    def max_code(self) -> int:
        """The greatest code, as kernels decode it: the code of the highest level."""
        return (self.high + self.offset) // self.step

    @property
    def unit(self) -> float:
        """The value of t = 1, before the scales."""
        return self.value * self.step / 2

    @property
    def dtype(self) -> type[np.signedinteger[Any]]:
        """The dtype of arrays of levels: int8, or int16 where they reach 128."""
        return np.int16 if self.high > 127 else np.int8

    @cached_property
    def array(self) -> npt.NDArray[Any]:
        """The levels as an array of `dtype`."""
        array = np.array(self.levels, self.dtype)
        array.flags.writeable = False
        return array

    @cached_property
    def of_halves(self) -> npt.NDArray[Any]:
        """Element i is the level nearest to low + i / 2, of two the lower one.

        This gives the nearest level of every number: bounds between two levels are halves.
        """
        halves = np.arange(2 * self.low, 2 * self.high + 1) / 2
        levels = self.array.astype(np.float64)  # sums of two may not fit int8
        table = self.array[np.searchsorted((levels[1:] + levels[:-1]) / 2, halves)]
        table.flags.writeable = False
        return table

    def has_all(self, levels: Iterable[int]) -> bool:
        """Whether these are levels."""
        return set(levels) <= set(self.levels)

    @property
    def code_rule(self) -> tuple[int, int]:
        """(offset, step) of what `encoded` returns, as the native core packs it."""
        return (0, 1) if self.by_code else (self.offset, self.step)

    def encoded(self, levels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the array to pack for levels [M, K]: themselves, or int8 codes by `by_code`."""
        if not self.by_code:
            return levels
        table = np.zeros(self.high - self.low + 1, np.int8)
        for code, level in reversed(list(enumerate(self.by_code))):
            table[level - self.low] = code
        return table[levels.astype(np.int16) - self.low]

    def decoded(self, codes: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
        """Unsigned codes float32 [M, K], as kernels decode them -> levels [M, K] of `dtype`."""
        levels = codes.astype(np.int16) * self.step - self.zero_x2 * self.step // 2
        return levels.astype(self.dtype)

    def nearest(self, ratios: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """Real numbers, of any shape -> the nearest levels, of `dtype`."""
        at = np.ceil(2 * np.clip(ratios, self.low, self.high)).astype(np.int16) - 2 * self.low
        return self.of_halves[at]

    def check(self, levels: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
        """Convert levels [M, K] of any numeric dtype to `dtype`.

        RequestError names the first that the codebook lacks, NonFiniteError one that is no number;
        name: the format's, for the message.
        """
        if levels.dtype.kind == "f":
            if (wrong := ~np.isfinite(levels)).any():
                at = first_index(wrong)
                raise NonFiniteError(
                    f"{name}: levels must be finite, but element {at} is {levels[at]}"
                )
            if (wrong := np.rint(levels) != levels).any():
                at = first_index(wrong)
                raise RequestError(
                    f"{name}: levels must be whole numbers, but element {at} is {levels[at]}; "
                    "use ops.quantize for real weights"
                )
        wrong = (levels < self.low) | (levels > self.high)
        if self.step > 1 or not self.is_even:
            wrong |= ~np.isin(levels, self.array)
        if wrong.any():
            at = first_index(wrong)
            few = len(self.levels) <= FEW or not self.is_even
            listed = ", ".join(
                map(str, self.levels if few else (self.low, self.low + 1, "…", self.high))
            )
            raise RequestError(
                f"{name}: levels must lie in {{{listed}}}, but element {at} is {levels[at]}"
            )
        return np.require(levels, self.dtype, ("C", "A"))


TERNARY = Codebook(range(-1, 2), offset=1)
