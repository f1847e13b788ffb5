"""What the K-quants q2_k ... q6_k share: super-blocks, as GGUF has them.

256 k of a row are a super-block: one f16 d (and where groups have minima a second, d_m), and for
each group of 16 or 32 k a whole number s_g (and m_g). A weight is d s_g level + d_m m_g. GGUF
subtracts its minima; here d_m is the negative of GGUF's dmin.

The scales of a matrix [M, K] are float32 [M, K / 256, 1 + groups], d first, or with minima
[M, K / 256, 2, 1 + groups], those of the minima second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError, RequestError
from sterna.formats.arithmetic import (
    F32,
    first_index,
    fma_f32,
    half_or_smallest,
    quantize_activations,
)
from sterna.formats.base import COARSE, GROUP_K, Format, PackedWeight

__all__ = ["SUPER_K", "KQuant"]

SUPER_K = 256  # k of a super-block
#: Factors of what a group's largest value asks for: rounding takes that of the least square error.
SEARCH = np.linspace(0.7, 1.1, 9, dtype=np.float32)


@dataclass(frozen=True)
class KQuant(Format):
    """A format of super-blocks; scale_type "super8" has s_g in int8, "super4" in a nibble."""

    scale_range: tuple[int, int] = (0, 63)  # of s_g
    minimum_range: tuple[int, int] = (0, 63)  # of m_g

    @property
    def block(self) -> int:
        """K is a multiple of it."""
        return SUPER_K

    @property
    def _parts(self) -> int:
        """Scales, and minima where there are any."""
        return 2 if self.minima else 1

    @property
    def _groups(self) -> int:
        """Groups of a super-block."""
        return SUPER_K // self.group

    def scale_shape(self, M: int, K: int) -> tuple[int, ...]:
        """Shape of the scales of a matrix [M, K]."""
        return (M, self.n_blocks(K), *((2,) if self.minima else ()), 1 + self._groups)

    def _in_parts(self, scales: F32, M: int, K: int) -> F32:
        """Scales as [M, super-blocks, parts, 1 + groups]."""
        return scales.reshape(M, self.n_blocks(K), self._parts, 1 + self._groups)

    def group_values(self, scales: F32, M: int, K: int) -> F32:
        """Scales -> [M, groups, 1], or with minima [M, groups, 2], the products d s_g: exact."""
        parts = self._in_parts(scales, M, K)
        values = (parts[..., :1] * parts[..., 1:]).swapaxes(2, 3)
        return np.ascontiguousarray(values).reshape(M, self.n_groups(K), self._parts)

    # ------------------------------------------------------------------------ the kernels' bytes

    @property
    def _line_bytes(self) -> tuple[int, int]:
        """Bytes of a super-block's floats and of its whole numbers, of a row."""
        per_group = 1 if self.scale_type == "super4" else self._parts
        return 2 * self._parts, self._groups * per_group

    def scale_bytes(self, M: int, K: int) -> int:
        """Bytes of scales that one pass over a packed matrix reads."""
        return self.n_tiles(M) * self.n_blocks(K) * self.tile_rows * sum(self._line_bytes)

    def pack_scales(self, scales: F32, M: int, K: int) -> npt.NDArray[np.uint8]:
        """Scales -> the kernels' lines, uint8 [tiles, bytes] (native/kernel_table.h)."""
        rows, tiles, blocks = self.tile_rows, self.n_tiles(M), self.n_blocks(K)
        padded = np.zeros((tiles * rows, *self.scale_shape(M, K)[1:]), np.float32)
        padded[:M] = scales
        by_row = padded.reshape(tiles, rows, blocks, self._parts, 1 + self._groups)
        lines = by_row.transpose(0, 2, 4, 3, 1)  # [tiles, blocks, 1 + groups, parts, rows]
        floats = np.ascontiguousarray(lines[:, :, 0].astype(np.float16)).view(np.uint8)
        whole = lines[:, :, 1:].astype(np.int8).view(np.uint8)
        if self.scale_type == "super4":
            whole = whole[..., :1, :] | whole[..., 1:, :] << 4
        n, m = self._line_bytes
        return np.concatenate(
            [floats.reshape(tiles, blocks, n * rows), whole.reshape(tiles, blocks, m * rows)],
            axis=2,
        ).reshape(tiles, blocks * (n + m) * rows)

    def unpack_scales(self, lines: npt.NDArray[np.uint8], M: int, K: int) -> F32:
        """The kernels' lines -> scales."""
        floats, whole = self._split(lines)
        by_line = np.concatenate([floats.astype(np.float32), whole.astype(np.float32)], axis=2)
        by_row = np.ascontiguousarray(by_line.transpose(0, 4, 1, 3, 2))
        rows = by_row.reshape(lines.shape[0] * self.tile_rows, *self.scale_shape(M, K)[1:])
        return np.ascontiguousarray(rows[:M])

    def _split(
        self, lines: npt.NDArray[np.uint8]
    ) -> tuple[npt.NDArray[np.float16], npt.NDArray[np.int8]]:
        """Lines -> f16 [tiles, blocks, 1, parts, rows], whole numbers [.., groups, parts, rows]."""
        rows, tiles = self.tile_rows, lines.shape[0]
        n, m = self._line_bytes
        view = lines.reshape(tiles, lines.shape[1] // (rows * (n + m)), rows * (n + m))
        blocks = view.shape[1]
        floats = np.ascontiguousarray(view[:, :, : rows * n]).view(np.float16)
        whole = view[:, :, rows * n :].reshape(tiles, blocks, self._groups, m // self._groups, rows)
        if self.scale_type == "super4":
            whole = np.concatenate([whole & 15, whole >> 4], axis=3)
        return (
            floats.reshape(tiles, blocks, 1, self._parts, rows),
            np.ascontiguousarray(whole).view(np.int8),
        )

    def scales_valid(self, lines: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether scales from an untrusted file are finite floats and whole numbers in range."""
        ranges = [self.scale_range, self.minimum_range][: self._parts]
        if self.scale_type == "super4":  # nibbles, which are all in range
            ranges = []
        return _native.super_scales_valid(
            lines, self.tile_rows, self._parts, self._line_bytes[1], ranges, threads
        )

    # ------------------------------------------------------------------------------------ checks

    def check_scales(self, scales: npt.NDArray[Any], M: int, K: int) -> F32:
        """Scales as float32 of the values that a super-block holds.

        RequestError for a wrong shape or a value that it does not hold, NonFiniteError.
        """
        s, shape = np.asarray(scales, np.float32), self.scale_shape(M, K)
        if s.shape not in ((), shape):
            raise RequestError(
                f"{self.name}: scale must have shape () or {shape}, but got {s.shape}"
            )
        given = np.broadcast_to(s, shape)
        s = np.array(given, np.float32)
        with np.errstate(over="ignore"):
            s[..., 0] = s[..., 0].astype(np.float16)
        if not np.isfinite(s).all():
            at = first_index(~np.isfinite(s))
            if not np.isfinite(given[at]):
                raise NonFiniteError(f"{self.name}: scale must be finite, but {at} is {given[at]}")
            raise RequestError(
                f"{self.name}: scale must be at most 65504, as an f16, but {at} is {given[at]}"
            )
        low, high = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        ranges = (self.scale_range, self.minimum_range)[: self._parts]
        for part, (least, most) in enumerate(ranges):
            where = (..., part, slice(1, None)) if self.minima else (..., slice(1, None))
            low[where], high[where] = least, most
        wrong = (s < low) | (s > high) | (s != np.rint(s))
        wrong[..., 0] = False
        if wrong.any():
            at = first_index(wrong)
            raise RequestError(
                f"{self.name}: scales of groups must be whole numbers from {low[at]:.0f} to "
                f"{high[at]:.0f}, but {at} is {s[at]}"
            )
        return np.asarray(s, np.float32)

    # ---------------------------------------------------------------------------------- rounding

    def quantize_blocks(self, blocks: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round super-blocks [B, 256] -> (levels [B, 256], scales [B, ...] as `scale_shape`).

        A group's scale is one of nine around what its largest value (or range) asks for, that of
        the least square error; these are rounded to whole multiples of a 16-bit float. Simpler than
        ggml's iterated search, so ggml's files have smaller errors.
        """
        groups = np.asarray(blocks, np.float32).reshape(-1, self._groups, self.group)
        m = np.minimum(groups.min(axis=2, initial=0.0), 0) if self.minima else np.float32(0)
        if self.minima:
            d_m, whole_m = _whole(m, 0, self.minimum_range)
            m = (d_m[:, None] * whole_m)[..., None]
            scales = self._searched(groups - m, (groups - m).max(axis=2, initial=0.0), 1)
        else:
            at = np.abs(groups).argmax(axis=2)[..., None]
            scales = self._searched(groups, np.take_along_axis(groups, at, 2)[..., 0], 0)
        d, whole = _whole(scales, 1 if self.minima else 0, self.scale_range)
        levels = self._levels(groups - m, d[:, None] * whole)
        parts = np.concatenate([d[:, None], whole], axis=1)
        # An f16 as small as this has few bits left: zeros may be nearer than what it makes.
        coarse = np.flatnonzero(np.abs(d) < COARSE)
        w, real = groups[coarse], levels[coarse] * (d[:, None] * whole)[coarse, :, None]
        error = real + (m[coarse] if self.minima else m) - w
        zeros = coarse[np.square(error).sum(axis=(1, 2)) > np.square(w).sum(axis=(1, 2))]
        parts[zeros] = 0
        if self.minima:
            d_m[zeros], whole_m[zeros] = 0, 0
            parts = np.stack([parts, np.concatenate([d_m[:, None], whole_m], axis=1)], axis=1)
        return levels.reshape(len(blocks), SUPER_K).astype(np.int8), parts

    def _levels(self, groups: F32, scales: F32) -> F32:
        """Groups [B, G, group] over their scales [B, G], to the nearest level."""
        assert self.levels is not None
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            ratio = np.where(scales[..., None] == 0, np.float32(0), groups / scales[..., None])
        return np.asarray(np.clip(np.rint(ratio), *self.levels), np.float32)

    def _searched(self, groups: F32, largest: F32, end: int) -> F32:
        """Scales [B, G] around the one that puts `largest` on the first (0) or last (1) level."""
        assert self.levels is not None
        start = largest / np.float32(self.levels[end])
        best, least = start, np.full(start.shape, np.inf, np.float32)
        for factor in SEARCH:
            scales = start * factor
            rounded = self._levels(groups, scales) * scales[..., None]
            with np.errstate(over="ignore"):
                error = np.square(rounded - groups).sum(axis=2)
            best, least = np.where(error < least, scales, best), np.minimum(error, least)
        return np.asarray(best, np.float32)

    def quantize_groups(self, w: F32) -> tuple[npt.NDArray[Any], F32]:
        """Round real weights [M, K] -> (levels, scales)."""
        M, K = w.shape
        self.check_shape(M, K)
        self._check_size(w)
        levels, scales = self.quantize_blocks(w.reshape(-1, SUPER_K))
        return levels.reshape(M, K), scales.reshape(self.scale_shape(M, K))

    def typical_scale(self, scales: F32, factor: float) -> F32:
        """One scale for all super-blocks: the medians of some, with d and d_m times a factor."""
        typical = np.rint(np.median(np.abs(scales), axis=0)).astype(np.float32)
        size = np.median(np.abs(scales[..., 0]), axis=0)  # signs differ where there are no minima
        typical[..., 0] = np.copysign(size, np.median(scales[..., 0], axis=0)) * factor
        return np.asarray(typical, np.float32)

    # ------------------------------------------------------------------------------- the oracle

    def _reference_groups(self, x: F32, packed: PackedWeight, levels: npt.NDArray[Any]) -> F32:
        """native/superblocks.h in numpy."""
        (N, K), M, group = x.shape, packed.M, self.group
        q, s_x = quantize_activations(x.reshape(-1, GROUP_K), 1e-30)
        q = q.reshape(N, K // group, group).astype(np.int64)
        s_x = s_x.reshape(N, K // GROUP_K)
        levels = levels.reshape(M, K // group, group).astype(np.int64)
        parts = self._in_parts(packed.scales, M, K)
        whole = parts[:, :, 0, 1:].reshape(M, K // group).astype(np.int64)
        minima = parts[:, :, -1, 1:].reshape(M, K // group)
        y = np.zeros((N, M), np.float32)
        for block in range(self.n_blocks(K)):
            p = np.zeros((N, M), np.float32)
            for k in range(block * SUPER_K, (block + 1) * SUPER_K, GROUP_K):
                total = np.zeros((N, M), np.int64)
                for g in range(k // group, (k + GROUP_K) // group):
                    total += whole[:, g] * (q[:, g] @ levels[:, g].T)
                p = fma_f32(total.astype(np.float32), s_x[:, k // GROUP_K, None], p)
            y = fma_f32(p, parts[None, :, block, 0, 0], y)
            if not self.minima:
                continue
            u = np.zeros((N, M), np.float32)
            for g in range(block * SUPER_K // group, (block + 1) * SUPER_K // group):
                sums = q[:, g].sum(axis=1).astype(np.float32) * s_x[:, g * group // GROUP_K]
                u = fma_f32(minima[None, :, g], sums[:, None], u)
            y = fma_f32(u, parts[None, :, block, 1, 0], y)
        return y


def _whole(values: F32, end: int, limits: tuple[int, int]) -> tuple[F32, F32]:
    """Values [B, G] as d [B] times whole numbers [B, G]: the largest is on the given limit.

    The other end of `limits` is as far from zero or nearer. d is rounded to f16 first, and to the
    smallest rather than to 0. end: 0 where the limit's sign is that of the largest value's opposite
    (ggml's choice of signs), 1 where values are not negative.
    """
    at = np.abs(values).argmax(axis=1)[:, None]
    largest = np.take_along_axis(values, at, 1)[:, 0]
    d = largest / np.float32(limits[0] if limits[0] and not end else limits[1])
    d = half_or_smallest(d)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        whole = np.where(d[:, None] == 0, np.float32(0), values / d[:, None])
    return d, np.clip(np.rint(whole), *limits).astype(np.float32)
