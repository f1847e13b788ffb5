"""Formats of any levels: a table of sixteen int8, or of four numbers from -8 to 7, for kernels to
look up.

The table belongs to the format, so that matrices with tables of their own have formats of their
own. The name of such a format is `lut4-` or `lut2-` and the levels, a byte in two hexadecimal
digits each, by their codes: `lut2-f9fe0207` has -7, -2, 2 and 7. Levels need not be in order, and
may repeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError, RequestError, shown
from sterna.formats.arithmetic import F32, first_index, half_if_finite, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales import GroupScales, ScaleLayout

__all__ = [
    "Table",
    "codebook",
    "name_of",
    "named",
    "nearest_levels",
    "of_levels",
    "without_table",
]

#: The layouts (native/layouts/lut2.h, lut4.h) by their numbers of levels, and what their kernels
#: add to a level.
LAYOUTS = {4: "lut2", 16: "lut4"}
OFFSETS = {4: 8, 16: 128}
GROUP = 32  # k of a scale, if a name does not say it


class Table(Format):
    """A scale puts the group's largest weight on the level that is farthest from zero."""

    @property
    def takes_groups(self) -> bool:
        """True: a table says nothing about scales."""
        return True

    def with_scales(self, name: str, scales: ScaleLayout) -> Format:
        """Return it with other scales, and its bits with them."""
        bits = table_bits(len(self.table), scales.group)
        return replace(self, name=name, scales=scales, bits=bits)

    def _scales(self, rows: F32) -> F32:
        """Return the scale of each row [B, k], float32 [B]."""
        assert self.codebook is not None
        at = np.abs(rows).argmax(axis=1)[:, None]
        end = np.float32(max(self.codebook.ends, key=abs))
        return np.asarray(np.take_along_axis(rows, at, 1)[:, 0] / end, np.float32)

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round to the nearest levels for the scale (w of max |w|) / the farthest level.

        blocks float32 [B, k] -> (levels int8 [B, k], scales float32 [B]).
        """
        d = half_if_finite(self._scales(blocks))
        return self._nearest(blocks, d[:, None]), d

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round rows, or all of a matrix, in the same way, with a float32 scale.

        w float32 [M, K] -> (levels int8 [M, K], scale float32 () or (M,)).
        """
        rows = w if self.axis(scale) else w.reshape(1, -1)
        if not w.size:
            return w.astype(np.int8), np.ones(len(w) if self.axis(scale) else (), np.float32)
        d = self._scales(rows)
        d = np.where(d == 0, np.float32(1), d).astype(np.float32)
        levels = self._nearest(rows, d[:, None]).reshape(w.shape)
        return levels, d if self.axis(scale) else d.reshape(())

    def _nearest(self, w: F32, d: F32) -> npt.NDArray[Any]:
        assert self.codebook is not None
        return self.codebook.nearest(w.astype(np.float64) * inverse_or_zero(d))


def codebook(levels: Sequence[int]) -> Codebook:
    """Make the codebook of the levels of codes 0, 1, …: four, or sixteen."""
    offset = OFFSETS[len(levels)]
    return Codebook(tuple(sorted(set(levels))), offset=offset, by_code=tuple(levels))


def table_bits(count: int, group: int) -> float:
    """Count the bits of a weight: a code of `count` levels, and an f16 for each `group`, if any."""
    return float(np.log2(count)) + (16 / group if group else 0)


def of_levels(
    name: str, levels: Sequence[int], summary: str, group: int = GROUP, instead: str = ""
) -> Table:
    """Make the format of four or sixteen levels, with an f16 scale for every `group` k of a row."""
    return Table(
        name=name,
        layout=Layout(LAYOUTS[len(levels)]),
        bits=table_bits(len(levels), group),
        summary=summary,
        codebook=codebook(levels),
        scales=GroupScales(group),
        instead=instead,
        searched=True,
    )


def nearest_levels(values: npt.ArrayLike, name: str = "table") -> tuple[tuple[int, ...], float]:
    """Round the real levels of a table to whole numbers times a scale.

    values: the levels of codes 0, 1, …, 4 or 16 of them, in any order; name: for messages. Returns
    (levels, scale) so that level * scale is near the value: of all that put the largest value at 64
    to 127 (of four levels, 4 to 7) those of least squares. NonFiniteError and RequestError, with
    `name`, for a table that no format can have.
    """
    real = np.asarray(values, np.float64)
    if real.shape not in [(count,) for count in LAYOUTS]:
        raise RequestError(f"{name}: must have 4 or 16 levels, but got shape {list(real.shape)}")
    if (wrong := ~np.isfinite(real)).any():
        at = first_index(wrong)
        raise NonFiniteError(f"{name}: levels must be finite, but element {at} is {real[at]}")
    most = float(np.abs(real).max())
    if most == 0:
        raise RequestError(f"{name}: levels must not all be 0")
    highest = OFFSETS[len(real)] - 1
    tops = np.arange(highest // 2 + 1, highest + 1)[:, None]
    near = np.rint(real / most * tops)
    best = int(np.argmin(np.square(near / tops - real / most).sum(axis=1)))
    return tuple(int(level) for level in near[best]), most / float(tops[best, 0])


@lru_cache(maxsize=1024)
def named(name: str) -> Table | None:
    """Return the format whose name brings its levels; None for names of another kind.

    RequestError for one of this kind that is not right.
    """
    layout, dash, digits = name.partition("-")
    count = next((n for n, of_layout in LAYOUTS.items() if of_layout == layout), 0)
    if not dash or not count:
        return None
    try:
        raw = bytes.fromhex(digits)
    except ValueError:
        raw = b""
    if len(digits) != 2 * count or len(raw) != count or digits != digits.lower():
        raise RequestError(
            f"format: {layout}- must be followed by {2 * count} hexadecimal digits, two for each "
            f"level, but got {shown(name)}"
        )
    levels, offset = np.frombuffer(raw, np.int8).astype(int), OFFSETS[count]
    if not levels.any() or not (-offset <= levels.min() and levels.max() < offset):
        raise RequestError(
            f"format: levels of {layout} must lie in {-offset}..{offset - 1} and not all be 0, but "
            f"those of {name} are {', '.join(map(str, levels.tolist()))}"
        )
    return of_levels(name, levels.tolist(), f"{count} levels of its own")


def name_of(levels: Sequence[int]) -> str:
    """Return the name of the format of these levels."""
    return f"{LAYOUTS[len(levels)]}-{np.array(levels, np.int8).tobytes().hex()}"


def without_table(format: str) -> str:
    """Shorten the name of a format that brings its levels: "lut4-8199…:g64" to "lut4:g64"."""
    base, dash, levels = format.partition("-")
    return base + "".join(levels.partition(":")[1:]) if dash else format
