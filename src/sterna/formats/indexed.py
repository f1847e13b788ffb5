"""Formats whose codes are indices of a table: GGUF's IQ1, IQ2 and IQ3.

An index stands for the magnitudes of eight or four weights (IQ1: for their ternary levels, with a
shift by an eighth). Tables are published data, in native/files/grids.cpp. Files have such weights;
they are not among the formats that are offered for rounding, which finds the nearest entries
without regard to the importance of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index, half_or_smallest, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales.odd import OddScales

__all__ = ["Indexed", "Magnitudes", "Shifted"]

Levels = npt.NDArray[np.int8]
CHUNK = 1 << 12  # groups of weights whose distances from all entries are in memory at a time


@dataclass(frozen=True, eq=False)
class Indexed(Format):
    """A format of a table, the entries of which stand for `width` weights."""

    @cached_property
    def entries(self) -> npt.NDArray[np.int16]:
        """The entries as magnitudes (of IQ1: ternary levels in eighths), int16 [entries, width]."""
        codes = np.asarray(_native.grid_codes(self.name), np.int16)
        return np.asarray(codes - self._zero, np.int16)

    @property
    def _zero(self) -> int:
        assert self.codebook is not None
        return self.codebook.offset

    @property
    def width(self) -> int:
        """Weights of an entry."""
        return int(self.entries.shape[1])

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round super-blocks float32 [B, 256] -> (levels int8 [B, 256], scales [B, 1 + groups]).

        A group's largest value gets the largest level, then each few weights the nearest entry.
        """
        assert isinstance(self.scales, OddScales)
        assert self.codebook is not None
        most = self.scales.scale_range[1]
        groups = np.asarray(blocks, np.float32).reshape(len(blocks), -1, self.scales.group)
        scale = np.abs(groups).max(axis=2) / np.float32(self.codebook.high * self.value)
        d = half_or_smallest(scale.max(axis=1, initial=0) / np.float32(most))
        ratio = scale * inverse_or_zero(d)[:, None]
        whole = np.clip(2 * np.rint((ratio - 1) / 2) + 1, 1, most).astype(np.float32)
        unit = (d[:, None] * whole * np.float32(self.value)).reshape(-1)
        x = groups.reshape(len(unit), -1) * inverse_or_zero(unit)[:, None]
        levels = self.nearest(x).reshape(blocks.shape)
        return levels, np.concatenate([d[:, None], whole], axis=1)

    def nearest(self, x: F32) -> Levels:
        """Return the nearest levels that entries have, for x [groups, group]."""
        raise NotImplementedError

    def negated(self, levels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the levels: not all have their opposites, and half of them are negative anyway."""
        return levels

    def _nearest_entry(self, x: F32) -> npt.NDArray[np.intp]:
        """Number the entries that are nearest to x [n, width]."""
        table = self.entries.astype(np.float32)
        half = np.square(table).sum(axis=1) / 2
        parts = [
            (half - x[at : at + CHUNK] @ table.T).argmin(axis=1) for at in range(0, len(x), CHUNK)
        ]
        return np.concatenate(parts) if parts else np.zeros(0, np.intp)

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the levels [M, K]; RequestError for some that no entry has."""
        if (wrong := self._wrong(values)).any():
            row, group = first_index(wrong)
            column = group * (values.shape[1] // wrong.shape[1])
            raise RequestError(
                f"{self.name}: levels must be entries of the format's table, but those of row "
                f"{row} from column {column} on are {values[row, column : column + 8].tolist()}"
            )
        return super().encode(values)

    def _wrong(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether levels [M, K] are none that the format holds, [M, groups]."""
        raise NotImplementedError

    def _has(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether rows [n, width] are entries."""
        return np.isin(_keys(rows), _keys(self.entries))


class Magnitudes(Indexed):
    """Entries are magnitudes, and each weight has a sign.

    With `even`, the number of signs of eight weights is even.
    """

    @property
    def even(self) -> bool:
        """Whether an eighth sign follows from seven."""
        return self.name not in ("iq2_s", "iq3_s")

    def nearest(self, x: F32) -> Levels:
        size, negative = np.abs(x).reshape(-1, 8), (x < 0).reshape(-1, 8)
        entry = self._nearest_entry(size.reshape(-1, self.width))
        levels = self.entries[entry].reshape(-1, 8)
        if self.even:  # the sign that matters least turns
            odd = np.flatnonzero(negative.sum(axis=1) % 2)
            least = (size[odd] * levels[odd]).argmin(axis=1)
            negative[odd, least] ^= True
        return np.where(negative, -levels, levels).astype(np.int8)

    def _wrong(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        M, K = values.shape
        size = np.abs(values.astype(np.int16))
        wrong = ~self._has(size.reshape(-1, self.width)).reshape(M, K // 8, -1).all(axis=2)
        if self.even:
            wrong |= (values < 0).reshape(M, K // 8, 8).sum(axis=2) % 2 == 1
        return np.asarray(wrong, np.bool_)


class Shifted(Indexed):
    """Entries are ternary levels in eighths, and an eighth is added to all of some weights."""

    @property
    def _zero(self) -> int:
        return 8

    @property
    def shift_k(self) -> int:
        """Weights that share the direction of their shift."""
        return 8 if self.name == "iq1_m" else 32

    def nearest(self, x: F32) -> Levels:
        both = []
        for shift in (1, -1):
            entry = self._nearest_entry((x - np.float32(shift)).reshape(-1, 8))
            both.append((self.entries[entry] + shift).reshape(-1, self.shift_k))
        of_shift = x.reshape(-1, self.shift_k)
        up, down = (np.square(of_shift - levels).sum(axis=1) for levels in both)
        return np.where((up <= down)[:, None], *both).astype(np.int8)

    def _wrong(self, values: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        M, K = values.shape
        shift = (values.astype(np.int16) + 9) >> 1 & 1
        ternary = values.astype(np.int16) - 2 * shift + 1
        wrong = ~self._has(ternary.reshape(-1, 8)).reshape(M, K // 8)
        same = shift.reshape(M, -1, self.shift_k)
        differ = (same != same[:, :, :1]).any(axis=2)
        return np.asarray(wrong | np.repeat(differ, self.shift_k // 8, axis=1), np.bool_)


def _keys(rows: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Number rows [n, width] of small integers, equal ones alike."""
    powers = 128 ** np.arange(rows.shape[1], dtype=np.int64)
    return np.asarray((rows.astype(np.int64) + 16) @ powers, np.int64)


def iq2(name: str, group: int, bits: float) -> Magnitudes:
    """Make a format with the levels 8, 25 and 43."""
    return Magnitudes(
        name=name,
        layout=Layout(name),
        bits=bits,
        summary=f"indices of eight weights (GGUF {name.upper()})",
        codebook=Codebook((-43, -25, -8, 8, 25, 43), offset=43, value=1 / 8),
        scales=OddScales(group, scale_range=(1, 31)),
        instead="q4_0",
        of_files=True,
    )


def iq1(name: str, group: int, bits: float) -> Shifted:
    """Make a format with the levels -1, 0 and 1, each an eighth up or down."""
    return Shifted(
        name=name,
        layout=Layout(name),
        bits=bits,
        summary=f"indices of eight ternary weights (GGUF {name.upper()})",
        codebook=Codebook((-9, -7, -1, 1, 7, 9), offset=9, value=1 / 8),
        scales=OddScales(group, scale_range=(1, 15), in_words=group == 16),
        instead="q4_0",
        of_files=True,
    )


def iq3(name: str, levels: tuple[int, ...], value: float, bits: float) -> Magnitudes:
    """Make a format with these levels and their opposites."""
    both = (*(-level for level in reversed(levels)), *levels)
    return Magnitudes(
        name=name,
        layout=Layout(name),
        bits=bits,
        summary=f"indices of four weights (GGUF {name.upper()})",
        codebook=Codebook(both, offset=levels[-1], value=value),
        scales=OddScales(32, scale_range=(1, 31)),
        instead="q4_0",
        of_files=True,
    )
