"""A matrix in a format's tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError, shown
from sterna.formats.arithmetic import F32
from sterna.formats.base import Format

__all__ = ["PackedWeight"]


@dataclass(frozen=True, eq=False)  # equal only to itself: arrays are not compared
class PackedWeight:
    """A matrix W [M, K] in a format's tiles.

    format: prints as its name, and equals it. codes: uint8 [ceil(M / tile_rows), tile_bytes].
    scale: float32, shape () (one for all) or (M,) (one a row), or for groups of k the kernels'
    lines, uint8 [tiles, bytes] (`scales` has the values). A weight is level * scale, for i2p
    level / 4 * scale, plus a minimum if the format has one. Float formats except powers of two have
    the scale 1.
    """

    format: Format
    M: int
    K: int
    codes: npt.NDArray[np.uint8] = field(repr=False)
    scale: npt.NDArray[Any] = field(repr=False)

    def __repr__(self) -> str:
        """Show the format's name and the shape."""
        return f"PackedWeight(format='{self.format}', M={self.M}, K={self.K})"

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K): output and input features."""
        return self.M, self.K

    @property
    def nbytes(self) -> int:
        """Bytes that one pass over the weights reads: codes and scales."""
        try:
            return self.codes.nbytes + self.format.scale_bytes(self.M, self.K)
        except (AttributeError, TypeError):
            raise self.refused() from None

    @property
    def scales(self) -> F32:
        """The scales' values, float32: (), (M,), or of groups the shape that `ops.pack` takes."""
        try:
            scales = self.format.scales.unpack(self.scale, self.format.layout, self.M, self.K)
            _native.require_whole(self.scale)
            return scales
        except (AttributeError, IndexError, TypeError, ValueError):
            raise self.refused() from None

    def rows(self, first: int, M: int) -> PackedWeight:
        """Return M rows from `first` on, which is the first of a tile; they share memory."""
        f = self.format
        codes = self.codes[first // f.tile_rows :][: f.n_tiles(M)]
        scale = f.scales.rows_of(self.scale, slice(first, first + M), f.layout)
        return PackedWeight(f, M, self.K, codes, scale)

    def unpacked(self, isa: str = "scalar", threads: int = 1) -> npt.NDArray[Any]:
        """Unpack tiles to levels int8 or int16 [M, K], or to float32 values of a float format."""
        return self.format.decode(_native.unpack(self.native(), isa, threads))

    def native(self) -> _native.Weight:
        """Return the kernels' view, which keeps the arrays alive.

        Raises AttributeError, TypeError or ValueError for fields that `ops.pack` did not make.
        """
        f = self.format
        if self.codes.dtype != np.uint8:  # the native core would convert it
            raise TypeError("codes must be uint8")
        rows = len(self.codes) * f.tile_rows
        scale, groups = f.scales.for_kernels(self.scale, self.M, rows, f.unit, f.value)
        of_layout = f.layout.name, self.M, self.K, self.codes
        return _native.Weight(*of_layout, scale, f.zero_x2, groups, f.table)

    def refused(self) -> RequestError:
        """Make the error for fields that come neither from `ops.pack` nor from a model's file."""
        arrays = (
            f"{getattr(a, 'dtype', type(a).__name__)} {getattr(a, 'shape', '')}".strip()
            for a in (self.codes, self.scale)
        )
        return RequestError(
            f"packed: codes and scale must be those that ops.pack makes for {self.format} and M, K "
            f"= {shown(self.M)}, {shown(self.K)}, but got {' and '.join(arrays)}"
        )
