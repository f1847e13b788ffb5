"""Super-blocks, as GGUF's K-quants have them.

256 k of a row are a super-block: one f16 d (and d_m, if groups have minima), and for each group of
16 or 32 k a whole number s_g (and m_g). A weight is d s_g level + d_m m_g. GGUF subtracts its
minima; here d_m is the negative of GGUF's dmin. ik_llama.cpp's IQ4_KS has float32 instead of f16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError, RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.layout import Layout
from sterna.formats.scales.base import Levels, Packed
from sterna.formats.scales.groups import GROUP_K
from sterna.formats.scales.numbers import F16
from sterna.formats.scales.within_rows import ProductScales

__all__ = ["SUPER_K", "SuperBlockScales"]

SUPER_K = 256  # k of a super-block


@dataclass(frozen=True)
class SuperBlockScales(ProductScales):
    """Scales float32 [M, K / 256, 1 + groups of a block], d first, then each s_g.

    With minima they are [M, K / 256, 2, 1 + groups], those of the minima second. Packed: for each
    super-block a line of f16 d and one of d_m, then for each group a line of s_g and one of m_g
    (native/scales/superblocks.h).

    group: k of a whole number, 16 or 32. scale_range, minimum_range: of s_g and m_g; None: no
    minima. nibbles: s_g and m_g share a byte, else each is an int8. wide: d and d_m are float32.
    """

    group: int
    scale_range: tuple[int, int]
    minimum_range: tuple[int, int] | None = None
    nibbles: bool = False
    wide: bool = False
    x_group = GROUP_K

    @property
    def minima(self) -> bool:
        """Whether m_g have a range."""
        return self.minimum_range is not None

    @property
    def block(self) -> int:
        return SUPER_K

    @property
    def kernel_name(self) -> str:
        """The kernels' name, by the bits of whole numbers; wide: of float32."""
        return "wide8" if self.wide else "super4" if self.nibbles else "super8"

    @property
    def _float(self) -> np.dtype[Any]:
        """The dtype of d and d_m."""
        return np.dtype(np.float32 if self.wide else np.float16)

    @property
    def max_weight(self) -> float:
        return F16.max_weight

    @property
    def rule(self) -> str:
        return F16.rule

    @property
    def summary(self) -> str | None:
        """f16 per 256 x integer and minimum per 32."""
        minima = " and minimum" if self.minima else ""
        return f"f{8 * self._float.itemsize} per {SUPER_K} x integer{minima} per {self.group}"

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """The range of s_g, and if there are minima the range of m_g."""
        return [self.scale_range, *([self.minimum_range] if self.minimum_range else [])]

    @property
    def groups(self) -> int:
        """Groups of a super-block."""
        return SUPER_K // self.group

    # ----------------------------------------------------------------------------------- values

    def shape(self, M: int, K: int) -> tuple[int, ...]:
        """Return (M, K / 256, 1 + groups), or with minima (M, K / 256, 2, 1 + groups)."""
        return (M, K // SUPER_K, *((2,) if self.minima else ()), 1 + self.groups)

    def in_parts(self, scales: F32, M: int, K: int) -> F32:
        """Reshape scales to [M, super-blocks, 1 or 2, 1 + groups]."""
        return scales.reshape(M, K // SUPER_K, len(self.ranges), 1 + self.groups)

    def group_values(self, scales: F32, M: int, K: int) -> F32:
        """Compute [M, groups, 1], or with minima [M, groups, 2]: the products d s_g.

        They are exact, but of float32 d, which are rounded.
        """
        parts = self.in_parts(scales, M, K)
        values = (parts[..., :1] * parts[..., 1:]).swapaxes(2, 3)
        return np.ascontiguousarray(values).reshape(M, self.n_groups(K), len(self.ranges))

    def check(self, scales: npt.NDArray[Any], M: int, K: int, name: str) -> F32:
        """Round scales of `shape` or () to values that a super-block holds, as float32."""
        s = np.asarray(scales, np.float32)
        values = np.broadcast_to(s, self.check_shape(s, M, K, name))
        s = np.array(values, np.float32)
        if not self.wide:
            s[..., 0], _ = F16.rounded(s[..., 0])
        if not np.isfinite(s).all():
            at = first_index(~np.isfinite(s))
            if not np.isfinite(values[at]):
                raise NonFiniteError(f"{name}: scale must be finite, but {at} is {values[at]}")
            raise RequestError(f"{name}: scale must be {F16.rule}, but {at} is {values[at]}")
        low, high = (self.in_parts(np.zeros(s.shape, np.float32), M, K) for _ in range(2))
        for part, (least, most) in enumerate(self.ranges):
            low[:, :, part, 1:], high[:, :, part, 1:] = least, most
        low, high = low.reshape(s.shape), high.reshape(s.shape)
        wrong = (s < low) | (s > high) | (s != np.rint(s))
        wrong[..., 0] = False
        if wrong.any():
            at = first_index(wrong)
            raise RequestError(
                f"{name}: scales of groups must be whole numbers from {low[at]:.0f} to "
                f"{high[at]:.0f}, but {at} is {s[at]}"
            )
        return np.asarray(s, np.float32)

    def weights(self, levels: Levels, scales: F32, value: float) -> F32:
        """Multiply levels [M, K] by scales of `shape`, to float32 [M, K]; a sum is rounded once."""
        if not (self.wide and self.minima):  # products are exact
            return super().weights(levels, scales, value)
        M, K = levels.shape
        pairs = self.group_values(scales, M, K).astype(np.float64)[..., None]
        groups = levels.reshape(*pairs.shape[:2], self.group)
        real = groups * (pairs[:, :, 0] * value) + pairs[:, :, 1]
        return np.asarray(real, np.float32).reshape(M, K)

    # ------------------------------------------------------------------------------------ packed

    @property
    def _line_bytes(self) -> tuple[int, int]:
        """Bytes of a super-block's floats and of its whole numbers, of a row."""
        parts = len(self.ranges)
        floats = self._float.itemsize * parts
        return floats, self.groups * (1 if self.nibbles else parts)

    def nbytes(self, layout: Layout, M: int, K: int) -> int:
        """Count the bytes of the lines of all tiles."""
        return layout.n_tiles(M) * (K // SUPER_K) * layout.tile_rows * sum(self._line_bytes)

    def pack(self, scales: F32, layout: Layout, M: int, K: int) -> Packed:
        """Pack scales of `shape` into lines uint8 [tiles, bytes]."""
        rows, tiles, blocks = layout.tile_rows, layout.n_tiles(M), K // SUPER_K
        padded = np.zeros((tiles * rows, *self.shape(M, K)[1:]), np.float32)
        padded[:M] = scales
        by_row = padded.reshape(tiles, rows, blocks, len(self.ranges), 1 + self.groups)
        lines = by_row.transpose(0, 2, 4, 3, 1)  # [tiles, blocks, 1 + groups, parts, rows]
        floats = np.ascontiguousarray(lines[:, :, 0].astype(self._float)).view(np.uint8)
        whole = lines[:, :, 1:].astype(np.int8).view(np.uint8)
        if self.nibbles:
            whole = whole[..., :1, :] | whole[..., 1:, :] << np.uint8(4)
        n, m = self._line_bytes
        return np.concatenate(
            [floats.reshape(tiles, blocks, n * rows), whole.reshape(tiles, blocks, m * rows)],
            axis=2,
        ).reshape(tiles, blocks * (n + m) * rows)

    def unpack(self, packed: Packed, layout: Layout, M: int, K: int) -> F32:
        """Unpack lines uint8 [tiles, bytes] to scales of `shape`."""
        floats, whole = self._apart(packed, layout.tile_rows)
        by_line = np.concatenate([floats.astype(np.float32), whole.astype(np.float32)], axis=2)
        by_row = np.ascontiguousarray(by_line.transpose(0, 4, 1, 3, 2))
        rows = by_row.reshape(packed.shape[0] * layout.tile_rows, *self.shape(M, K)[1:])
        return np.ascontiguousarray(rows[:M])

    def _apart(self, lines: Packed, rows: int) -> tuple[npt.NDArray[Any], npt.NDArray[np.int8]]:
        """Split lines: floats [tiles, blocks, 1, parts, rows], whole [.., groups, parts, rows]."""
        tiles, parts = lines.shape[0], len(self.ranges)
        n, m = self._line_bytes
        view = lines.reshape(tiles, lines.shape[1] // (rows * (n + m)), rows * (n + m))
        blocks = view.shape[1]
        floats = np.ascontiguousarray(view[:, :, : rows * n]).view(self._float)
        whole = view[:, :, rows * n :].reshape(tiles, blocks, self.groups, m // self.groups, rows)
        if self.nibbles:
            whole = np.concatenate([whole & 15, whole >> 4], axis=3)
        return (
            floats.reshape(tiles, blocks, 1, parts, rows),
            np.ascontiguousarray(whole).view(np.int8),
        )

    def valid(self, packed: Packed, layout: Layout, threads: int) -> bool:
        """Whether all d are finite, and whole numbers in range."""
        if self.wide:
            floats, whole = self._apart(packed, layout.tile_rows)
            inside = [
                (whole[..., part, :] >= low) & (whole[..., part, :] <= high)
                for part, (low, high) in enumerate(self.ranges)
            ]
            return bool(np.isfinite(floats).all() and np.stack(inside).all())
        ranges = [] if self.nibbles else self.ranges  # all nibbles are in range
        return _native.super_scales_valid(
            packed, layout.tile_rows, len(self.ranges), self._line_bytes[1], ranges, threads
        )

    # --------------------------------------------------------------------------------- rounding

    def typical(self, scales: F32, factor: float) -> F32:
        """Return the medians of some super-blocks [B, ...], with d and d_m times a factor."""
        typical = np.rint(np.median(np.abs(scales), axis=0)).astype(np.float32)
        size = np.median(np.abs(scales[..., 0]), axis=0)  # signs differ where there are no minima
        typical[..., 0] = np.copysign(size, np.median(scales[..., 0], axis=0)) * factor
        return np.asarray(typical, np.float32)
