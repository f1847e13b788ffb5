"""The base of scale layouts with several scales in a row, one for each group of k."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from math import prod

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.layout import Layout
from sterna.formats.scales.base import KernelGroups, Levels, Packed, ScaleLayout

__all__ = ["BlockScales", "ProductScales"]


class BlockScales(ScaleLayout):
    """Blocks of k have scales of their own, packed as the kernels' lines, uint8 [tiles, bytes]."""

    default = "group"
    packed_dtype: type[np.generic] = np.uint8

    @property
    @abstractmethod
    def kernel_name(self) -> str:
        """The native core's name of the numbers."""

    @property
    @abstractmethod
    def max_weight(self) -> float:
        """The largest weight for which a scale can be packed."""

    @property
    @abstractmethod
    def rule(self) -> str:
        """The rule for scales, for a message."""

    @abstractmethod
    def group_values(self, scales: F32, M: int, K: int) -> F32:
        """Convert scales to float32 [M, groups, 1], or with minima [M, groups, 2]."""

    @property
    def single(self) -> bool:
        """Unless there are minima."""
        return not self.minima

    def n_groups(self, K: int) -> int:
        """Count the groups of a row of K columns."""
        return K // self.group

    def check_given(self, shape: tuple[int, ...], M: int, K: int, name: str) -> None:
        """Raise RequestError for more than a scale and a minimum for each weight."""
        if prod(shape) > 2 * max(M, 1) * max(K, 1):
            raise RequestError(f"{name}: scale must fit weights [{M}, {K}], but got {shape}")

    def check_shape(self, scales: F32, M: int, K: int, name: str) -> tuple[int, ...]:
        """Return `shape`; RequestError unless it is the scales' shape, or theirs is ()."""
        shape = self.shape(M, K)
        if scales.shape not in ((), shape):
            raise RequestError(
                f"{name}: scale must have shape () or {shape}, but got {scales.shape}"
            )
        return shape

    def joined(self, parts: Sequence[tuple[int, F32]]) -> F32:
        return np.concatenate([scale for _, scale in parts])

    def weights(self, levels: Levels, scales: F32, value: float) -> F32:
        """Multiply levels [M, K] by scales of `shape`, to float32 [M, K]."""
        M, K = levels.shape
        pairs = self.group_values(scales, M, K)[..., None]
        groups = levels.reshape(*pairs.shape[:2], self.group).astype(np.float32)
        real = groups * (pairs[:, :, 0] * np.float32(value))
        if self.minima:
            real = real + pairs[:, :, 1]
        return np.asarray(real, np.float32).reshape(M, K)

    @property
    def kinds(self) -> tuple[str, ...]:
        return (f"group:{self.group}",)

    def kind_of(self, packed: Packed) -> str:
        return self.kinds[0]

    def packed_shape(self, kind: str, layout: Layout, M: int, K: int) -> tuple[int, ...]:
        """Return (tiles, bytes of a tile's lines)."""
        tiles = layout.n_tiles(M)
        return tiles, self.nbytes(layout, M, K) // tiles

    def rows_of(self, packed: Packed, rows: slice, layout: Layout) -> Packed:
        """Return the lines of their tiles, which share memory."""
        size = layout.tile_rows
        return packed[rows.start // size : -(-rows.stop // size)]

    def stacked(self, parts: Sequence[Packed], M: int, rows: int) -> Packed:
        """Join the lines of all tiles."""
        tiles, nbytes = parts[0].shape
        lines = _native.alloc(len(parts) * tiles * nbytes).reshape(len(parts), tiles, nbytes)
        for i, part in enumerate(parts):
            lines[i] = part
        return lines.reshape(-1, nbytes)

    def for_kernels(
        self, packed: Packed, M: int, rows: int, unit: float, value: float
    ) -> tuple[F32 | None, KernelGroups | None]:
        """Return the lines and their kinds; TypeError for an array of another dtype."""
        if packed.dtype != self.packed_dtype:  # the native core would convert it
            raise TypeError("scales of groups must be uint8")
        return None, (packed, self.group, self.x_group, self.kernel_name, self.minima, value)

    def check_weights(self, w: F32, name: str) -> None:
        """Raise RequestError for a weight whose scale is too large to be packed.

        Sums with such a weight overflow float32, too. `check` names smaller excesses.
        """
        if max(w.max(initial=0), -w.min(initial=0)) > self.max_weight:
            at = first_index(np.abs(w) > self.max_weight)
            raise RequestError(
                f"{name}: scale must be {self.rule}, but element {at} of the "
                f"weights is {w[at]!s}; use a format with a scale for each row, such as i8"
            )


class ProductScales(BlockScales):
    """Blocks whose scale is a product: a float d of many blocks, times a number of few bits."""

    @property
    def single(self) -> bool:
        """False: a scale is a product of two numbers."""
        return False

    @property
    def any_number(self) -> bool:
        """Only the multiples of d."""
        return False


def lines_of(values: npt.NDArray[np.generic], layout: Layout, count: int) -> Packed:
    """Arrange values [M, n], n <= count, of rows as lines of tiles, uint8 [tiles, bytes]."""
    M, n = values.shape
    tiles, rows = layout.n_tiles(M), layout.tile_rows
    by_row = np.zeros((tiles * rows, count), values.dtype)
    by_row[:M, :n] = values
    lines = np.ascontiguousarray(by_row.reshape(tiles, rows, count).transpose(0, 2, 1))
    return lines.reshape(tiles, count * rows).view(np.uint8)
