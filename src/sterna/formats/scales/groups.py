"""A scale, and in some formats a minimum, for every group of k of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError, RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout
from sterna.formats.scales.base import Levels, Packed
from sterna.formats.scales.numbers import F16, ScaleNumber
from sterna.formats.scales.within_rows import BlockScales, lines_of

__all__ = ["GROUP_K", "GroupScales"]

GROUP_K = 32  # activations that share a scale, where weights have scales in groups
PAD_K = 64  # integer layouts pad K to it, and so do lines of scales


@dataclass(frozen=True)
class GroupScales(BlockScales):
    """Scales float32 [M, groups], or with minima [M, groups, 2], a scale and a minimum each.

    Packed: for each group a line of numbers, one for each row of the tile, followed by a line of
    minima, if any (native/scales/groups.h).

    group: k of a scale, a multiple of 32. number: the type of a scale or minimum. x_group: k of a
    scale of activations, 32 or 256.
    """

    group: int
    number: ScaleNumber = F16
    minima: bool = False
    x_group: int = GROUP_K

    @property
    def block(self) -> int:
        return self.group

    @property
    def any_number(self) -> bool:
        """Whether a scale can be any number, by its type."""
        return self.number.any_number

    @property
    def kernel_name(self) -> str:
        return self.number.name

    @property
    def max_weight(self) -> float:
        return self.number.max_weight

    @property
    def rule(self) -> str:
        return self.number.rule

    @property
    def summary(self) -> str | None:
        """f16 and minimum per 32."""
        return f"{self.number.name}{' and minimum' if self.minima else ''} per {self.group}"

    @property
    def _per_group(self) -> int:
        return 2 if self.minima else 1

    def _lines(self, K: int) -> int:
        """Count the lines of a tile; K is padded like the codes'."""
        return -(-(-(-K // PAD_K) * PAD_K) // self.group) * self._per_group

    # ----------------------------------------------------------------------------------- values

    def shape(self, M: int, K: int) -> tuple[int, ...]:
        """Return (M, groups), or with minima (M, groups, 2)."""
        return (M, self.n_groups(K), 2) if self.minima else (M, self.n_groups(K))

    def group_values(self, scales: F32, M: int, K: int) -> F32:
        """Convert scales to float32 [M, groups, 1], or with minima [M, groups, 2]."""
        return scales.reshape(M, self.n_groups(K), self._per_group)

    def check(self, scales: npt.NDArray[Any], M: int, K: int, name: str) -> F32:
        """Round scales of `shape` or () to values that the number holds, as float32."""
        values = np.asarray(scales, np.float32)
        values = np.broadcast_to(values, self.check_shape(values, M, K, name))
        rounded, fits = self.number.rounded(values)
        if not fits.all():
            at = first_index(~fits)
            if not np.isfinite(values[at]):
                raise NonFiniteError(f"{name}: scale must be finite, but {at} is {values[at]}")
            raise RequestError(
                f"{name}: scale must be {self.number.rule}, but {at} is {values[at]}"
            )
        return rounded

    # ------------------------------------------------------------------------------------ packed

    def nbytes(self, layout: Layout, M: int, K: int) -> int:
        """Count the bytes of the lines of all tiles."""
        return layout.n_tiles(M) * self._lines(K) * layout.tile_rows * self.number.dtype.itemsize

    def pack(self, scales: F32, layout: Layout, M: int, K: int) -> Packed:
        """Pack scales of `shape` into lines uint8 [tiles, bytes]."""
        typed = self.number.encoded(scales).reshape(M, self.n_groups(K) * self._per_group)
        return lines_of(typed, layout, self._lines(K))

    def unpack(self, packed: Packed, layout: Layout, M: int, K: int) -> F32:
        """Unpack lines uint8 [tiles, bytes] to scales of `shape`."""
        tiles, count = packed.shape[0], self._lines(K)
        typed = packed.view(self.number.dtype).reshape(tiles, count, layout.tile_rows)
        rows = typed.transpose(0, 2, 1).reshape(tiles * layout.tile_rows, count)
        values = self.number.decoded(rows[:M, : self.n_groups(K) * self._per_group])
        return np.ascontiguousarray(values, np.float32).reshape(self.shape(M, K))

    def valid(self, packed: Packed, layout: Layout, threads: int) -> bool:
        """Whether all numbers are finite."""
        return self.number.valid(packed, threads)

    # --------------------------------------------------------------------------------- rounding

    def settled(
        self, blocks: F32, levels: Levels, scales: F32, codebook: Codebook
    ) -> tuple[Levels, F32]:
        """Correct levels [B, group] and scales [B, ...] of rounding, for scales as they are packed.

        A coarse scale has few bits left. For such a block, the best of three is taken: the rounded
        levels, the levels nearest to its weights for the packed scale, and zeros.
        """
        d = np.abs(scales[:, 0] if self.minima else scales)
        coarse = np.flatnonzero(d < self.number.coarse)
        if not coarse.size:
            return levels, scales
        w, first, s = blocks[coarse].astype(np.float64), levels[coarse], scales[coarse]
        near, lifted = self.number.nearest(s), self.number.lifted(s)
        if self.minima:
            lifted[:, 1] = near[:, 1]  # a minimum of 0 loses less than the smallest one
        tried = [
            (first, near),
            (self._nearest(w, lifted, codebook), lifted),
            (first, np.zeros_like(near)),
        ]
        values = [self._block_values(*one, codebook.value) for one in tried]
        errors = [np.square(made - w).sum(axis=1) for made in values]
        best = np.argmin(errors, axis=0)  # the first of equal ones
        levels, scales = levels.copy(), scales.copy()
        for i, (of_block, scale) in enumerate(tried):
            here = best == i
            levels[coarse[here]], scales[coarse[here]] = of_block[here], scale[here]
        return levels, scales

    def _block_values(self, levels: Levels, scales: F32, value: float) -> npt.NDArray[np.float64]:
        """Compute the values of blocks [B, group]."""
        pairs = scales.astype(np.float64).reshape(len(scales), -1)
        values = levels * (pairs[:, :1] * value)
        return np.asarray(values + pairs[:, 1:] if self.minima else values)

    def _nearest(self, w: npt.NDArray[np.float64], scales: F32, codebook: Codebook) -> Levels:
        """Find the levels [B, group] nearest to weights, any for a scale of 0."""
        pairs = scales.astype(np.float64).reshape(len(scales), -1)
        d = np.where(pairs[:, :1] == 0, 1, pairs[:, :1] * codebook.value)
        return codebook.nearest((w - pairs[:, 1:] if self.minima else w) / d)

    def typical(self, scales: F32, factor: float) -> F32:
        """Return the median of some groups' scales [B] (of |scale|) or [B, 2], times a factor."""
        typical = np.median(scales if self.minima else np.abs(scales), axis=0)
        return np.asarray(typical * factor, np.float32)

    def repeated(self, scale: F32, layout: Layout, K: int) -> Packed:
        """Repeat one scale, or scale and minimum, for all groups in the lines of a tile."""
        if not self.number.any_number:
            scale = self.number.nearest(scale)
        return super().repeated(scale, layout, K)
