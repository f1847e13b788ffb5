"""Micro-blocks, as NVFP4 has them: a float for each row, times an E4M3 for each 16 k.

A weight is d s_g level.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError, RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.layout import Layout
from sterna.formats.scales.base import Packed
from sterna.formats.scales.groups import GROUP_K, PAD_K
from sterna.formats.scales.numbers import E4M3
from sterna.formats.scales.within_rows import ProductScales, lines_of

__all__ = ["MICRO_K", "MicroBlockScales"]

MICRO_K = 16  # k of a micro-block
FLOAT_BYTES = 4  # of a row's d


@dataclass(frozen=True)
class MicroBlockScales(ProductScales):
    """Scales float32 [M, 1, 1 + groups], d first, then each s_g.

    Packed: a line of float32 d for the rows of a tile, then for each group a line of bytes
    (native/scales/microblocks.h).
    """

    default = "row"
    group = MICRO_K
    x_group = GROUP_K

    @property
    def kernel_name(self) -> str:
        return E4M3.name

    @property
    def max_weight(self) -> float:
        return E4M3.max_weight

    @property
    def rule(self) -> str:
        return E4M3.rule

    @property
    def block(self) -> int:
        return MICRO_K

    @property
    def summary(self) -> str | None:
        """f32 per row x e4m3 per 16."""
        return f"f32 per row x {E4M3.name} per {MICRO_K}"

    def _lines(self, K: int) -> int:
        """Count the groups' lines of a tile; K is padded like the codes'."""
        return -(-K // PAD_K) * PAD_K // MICRO_K

    # ----------------------------------------------------------------------------------- values

    def shape(self, M: int, K: int) -> tuple[int, ...]:
        """Return (M, 1, 1 + groups)."""
        return (M, 1, 1 + self.n_groups(K))

    def group_values(self, scales: F32, M: int, K: int) -> F32:
        """Compute [M, groups, 1]: the products d s_g, rounded to float32."""
        return np.asarray(scales[:, 0, :1] * scales[:, 0, 1:], np.float32)[:, :, None]

    def check(self, scales: npt.NDArray[np.generic], M: int, K: int, name: str) -> F32:
        """Check scales of `shape`, or one d for all, whose s_g are 1."""
        s = np.asarray(scales, np.float32)
        shape = self.check_shape(s, M, K, name)
        values = s if s.ndim else self._alike(s, shape)
        if not np.isfinite(values).all():
            at = first_index(~np.isfinite(values))
            raise NonFiniteError(f"{name}: scale must be finite, but {at} is {values[at]}")
        _, fits = E4M3.rounded(values[..., 1:])
        if not fits.all():
            at = first_index(~fits)
            raise RequestError(
                f"{name}: scales of groups must be {self.rule}, but {at} is {values[..., 1:][at]}"
            )
        return values

    @staticmethod
    def _alike(d: F32, shape: tuple[int, ...]) -> F32:
        values = np.ones(shape, np.float32)
        values[..., 0] = d
        return values

    # ------------------------------------------------------------------------------------ packed

    def nbytes(self, layout: Layout, M: int, K: int) -> int:
        """Count the bytes of the lines of all tiles."""
        return layout.n_tiles(M) * layout.tile_rows * (FLOAT_BYTES + self._lines(K))

    def pack(self, scales: F32, layout: Layout, M: int, K: int) -> Packed:
        """Pack scales of `shape` into lines uint8 [tiles, bytes]."""
        floats = lines_of(scales[:, 0, :1].astype("<f4"), layout, 1)
        groups = lines_of(E4M3.encoded(scales[:, 0, 1:]), layout, self._lines(K))
        return np.concatenate([floats, groups], axis=1)

    def unpack(self, packed: Packed, layout: Layout, M: int, K: int) -> F32:
        """Unpack lines uint8 [tiles, bytes] to scales of `shape`."""
        tiles, rows, count = packed.shape[0], layout.tile_rows, self._lines(K)
        d = self._floats(packed, layout).reshape(-1, 1)
        lines = packed[:, FLOAT_BYTES * rows :].reshape(tiles, count, rows)
        groups = E4M3.decoded(lines.transpose(0, 2, 1).reshape(tiles * rows, count))
        both = np.concatenate([d[:M], groups[:M, : self.n_groups(K)]], axis=1)
        return np.ascontiguousarray(both.reshape(self.shape(M, K)), np.float32)

    @staticmethod
    def _floats(packed: Packed, layout: Layout) -> F32:
        return np.ascontiguousarray(packed[:, : FLOAT_BYTES * layout.tile_rows]).view("<f4")

    def valid(self, packed: Packed, layout: Layout, threads: int) -> bool:
        """Whether all d are finite, and all s_g numbers without a sign."""
        groups = packed[:, FLOAT_BYTES * layout.tile_rows :]
        return bool(np.isfinite(self._floats(packed, layout)).all()) and E4M3.valid(groups, threads)

    # --------------------------------------------------------------------------------- rounding

    def typical(self, scales: F32, factor: float) -> F32:
        """Return the median d s_g of some rows [B, 1, 1 + groups], times a factor: a d alone."""
        products = scales[..., :1] * scales[..., 1:]
        return np.asarray(np.median(products) * factor, np.float32)

    def repeated(self, scale: F32, layout: Layout, K: int) -> Packed:
        """Repeat one d in the lines of a tile, with s_g of 1."""
        rows = layout.tile_rows
        return self.pack(self._alike(scale, self.shape(rows, K)), layout, rows, K)
