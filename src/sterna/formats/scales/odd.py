"""Super-blocks whose scales are odd numbers of three or four bits, as GGUF's IQ1, IQ2 and IQ3 have.

A weight is d s_g level, with s_g = 2 c + 1 for a code c. Packed: for each super-block a line of
f16 d, then for each two groups a line of bytes, whose low nibble is c of the first. With three bits
(IQ1_M, groups of 16), four groups have a line of low bytes and one of high bytes: together they are
words, with c of the first group in the lowest bits and four bits of d in the highest, those of the
first word the lowest (native/scales/layouts.h).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.layout import Layout
from sterna.formats.scales.base import Packed
from sterna.formats.scales.numbers import F16
from sterna.formats.scales.superblocks import SUPER_K, SuperBlockScales

__all__ = ["OddScales"]

U16 = npt.NDArray[np.uint16]


@dataclass(frozen=True)
class OddScales(SuperBlockScales):
    """Scales float32 [M, K / 256, 1 + groups of a block], d first, then each s_g.

    in_words: d lies between scales of three bits.
    """

    in_words: bool = False

    @property
    def kernel_name(self) -> str:
        """The kernels' name."""
        return "odd3" if self.in_words else "odd4"

    @property
    def summary(self) -> str | None:
        """f16 per 256 x odd number per 32."""
        return f"f16 per {SUPER_K} x odd number per {self.group}"

    def check(self, scales: npt.NDArray[np.generic], M: int, K: int, name: str) -> F32:
        """Round d to f16; RequestError for a scale of a group that is no odd number in range."""
        s = np.asarray(scales, np.float32)
        given = np.broadcast_to(s, self.check_shape(s, M, K, name))
        whole = given[..., 1:] if s.ndim else np.ones((), np.float32)
        checked = super().check(given if s.ndim else self._ones(s, M, K), M, K, name)
        if s.ndim and (even := np.mod(whole, 2) != 1).any():
            at = first_index(even)
            raise RequestError(
                f"{name}: scales of groups must be odd numbers up to {self.scale_range[1]}, "
                f"but {at} is {whole[at]}"
            )
        return checked

    def _ones(self, d: F32, M: int, K: int) -> F32:
        """One d for all, with scales of 1."""
        s = np.ones(self.shape(M, K), np.float32)
        s[..., 0] = d
        return s

    # ------------------------------------------------------------------------------------ packed

    @property
    def _line_bytes(self) -> tuple[int, int]:
        return (0, 8) if self.in_words else (2, self.groups // 2)

    def pack(self, scales: F32, layout: Layout, M: int, K: int) -> Packed:
        """Pack scales of `shape` into lines uint8 [tiles, bytes]."""
        rows, tiles, blocks = layout.tile_rows, layout.n_tiles(M), K // SUPER_K
        padded = np.ones((tiles * rows, *self.shape(M, K)[1:]), np.float32)
        padded[..., 0] = 0
        padded[:M] = scales
        lines = padded.reshape(tiles, rows, blocks, 1 + self.groups).transpose(0, 2, 3, 1)
        d = np.ascontiguousarray(F16.encoded(lines[:, :, :1])).view(np.uint16)
        codes = ((lines[:, :, 1:] - 1) / 2).astype(np.uint16)
        if self.in_words:
            four = codes.reshape(tiles, blocks, 4, 4, rows)
            words = (four << np.arange(0, 12, 3, dtype=np.uint16)[:, None]).sum(axis=3)
            words |= (d >> np.arange(0, 16, 4, dtype=np.uint16)[:, None] & 15) << 12
            pairs = np.stack([words & 255, words >> 8], axis=3).astype(np.uint8)
            return pairs.reshape(tiles, blocks * 8 * rows)
        two = (codes[:, :, ::2] | codes[:, :, 1::2] << 4).astype(np.uint8)
        head = d.view(np.uint8).reshape(tiles, blocks, 2 * rows)
        both = np.concatenate([head, two.reshape(tiles, blocks, -1)], axis=2)
        return both.reshape(tiles, -1)

    def unpack(self, packed: Packed, layout: Layout, M: int, K: int) -> F32:
        """Unpack lines uint8 [tiles, bytes] to scales of `shape`."""
        d, codes = self._parts(packed, layout.tile_rows)
        whole = 2 * codes.astype(np.float32) + 1
        by_line = np.concatenate([d.view(np.float16).astype(np.float32), whole], axis=2)
        by_row = by_line.transpose(0, 3, 1, 2).reshape(
            packed.shape[0] * layout.tile_rows, *self.shape(M, K)[1:]
        )
        return np.ascontiguousarray(by_row[:M])

    def _parts(self, lines: Packed, rows: int) -> tuple[U16, U16]:
        """Split lines: the bits of d [tiles, blocks, 1, rows], codes [.., groups, rows]."""
        tiles, size = lines.shape[0], rows * sum(self._line_bytes)
        view = lines.reshape(tiles, lines.shape[1] // size, size)
        blocks = view.shape[1]
        if self.in_words:
            pairs = view.reshape(tiles, blocks, 4, 2, rows).astype(np.uint16)
            words = pairs[:, :, :, 0] | pairs[:, :, :, 1] << 8
            d = (words >> 12 << np.arange(0, 16, 4, dtype=np.uint16)[:, None]).sum(
                axis=2, keepdims=True
            )
            four = words[:, :, :, None] >> np.arange(0, 12, 3, dtype=np.uint16)[:, None] & 7
            codes = four.reshape(tiles, blocks, self.groups, rows).astype(np.uint16)
            return d.astype(np.uint16), codes
        head = np.ascontiguousarray(view[:, :, : 2 * rows]).view(np.uint16)
        two = view[:, :, 2 * rows :].reshape(tiles, blocks, self.groups // 2, 1, rows)
        codes = np.concatenate([two & 15, two >> 4], axis=3).astype(np.uint16)
        return head.reshape(tiles, blocks, 1, rows), codes.reshape(tiles, blocks, self.groups, rows)

    def valid(self, packed: Packed, layout: Layout, threads: int) -> bool:
        """Whether all d are finite; all codes are in range."""
        if self.in_words:
            d, _ = self._parts(packed, layout.tile_rows)
            return bool(np.isfinite(d.view(np.float16)).all())
        halves, singles = self._line_bytes[0] // 2, self._line_bytes[1]
        return _native.super_scales_valid(packed, layout.tile_rows, halves, singles, [], threads)

    # --------------------------------------------------------------------------------- rounding

    def typical(self, scales: F32, factor: float) -> F32:
        """Return the medians of some super-blocks [B, ...], with d times a factor."""
        typical = super().typical(scales, factor)
        typical[..., 1:] = np.maximum(2 * np.floor(typical[..., 1:] / 2) + 1, 1)
        return typical
