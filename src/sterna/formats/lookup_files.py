"""Weights of files in the lookup-table formats, which sterna-papers has (papers/README.md).

Earlier versions of Sterna packed models in them. Their codes become those of a format with the same
levels and scales, so no weight changes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["LookupFormat", "lookup_format"]

ROWS = 64  # of a tile
CODES = 8  # of each row, in a block
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Blocks:
    """Blocks of 64 rows x k, as papers/native/lookup/codes.h draws them.

    A code is `weights` digits below `base`, a number; mirrored: less that of all middle digits, and
    its sign is a bit of a line of its own. planes: 2 if a weight's low and high bit are digits of
    two codes.
    """

    base: int
    weights: int
    mirrored: bool = False
    planes: int = 1

    @property
    def k(self) -> int:
        """Consecutive k of a block."""
        return CODES // self.planes * self.weights

    @property
    def nbytes(self) -> int:
        """Bytes of a block: four lines of nibbles, and one of signs."""
        return 64 * (5 if self.mirrored else 4)

    @cached_property
    def digits(self) -> Bytes:
        """The digits of each index and, from 16 on, of each mirrored one: uint8 [32, weights]."""
        middle = self.base**self.weights // 2
        size = np.arange(16)
        numbers = middle + np.concatenate([size, -size]) if self.mirrored else np.tile(size, 2)
        powers = self.base ** np.arange(self.weights)[::-1]
        digits = numbers[:, None] // powers % self.base
        unused = (numbers < 0) | (numbers >= self.base**self.weights)
        digits[unused] = self.base // 2  # an index that no number has means zeros
        return digits.astype(np.uint8)

    def decoded(self, raw: Bytes) -> Bytes:
        """Bytes of whole blocks of tiles, uint8 [tiles, bytes] -> codes uint8 [tiles, 64, k]."""
        tiles = len(raw)
        lines = raw.reshape(tiles, -1, self.nbytes // 64, 16, 4)  # byte 4 r + j is row 16 j + r
        lines = lines.swapaxes(3, 4).reshape(tiles, -1, self.nbytes // 64, 64)
        nibbles = np.stack([lines[:, :, :4] & 15, lines[:, :, :4] >> 4], axis=3)
        indices = nibbles.reshape(tiles, -1, CODES, 64)
        if self.mirrored:
            signs = lines[:, :, 4, None] >> np.arange(CODES, dtype=np.uint8)[:, None] & 1
            indices = indices + 16 * signs
        digits: Bytes = self.digits[indices]  # [tiles, blocks, codes, 64, weights]
        if self.planes == 2:
            digits = digits[:, :, ::2] + 2 * digits[:, :, 1::2]
        codes: Bytes = digits.transpose(0, 3, 1, 2, 4).reshape(tiles, 64, -1)
        return codes


@dataclass(frozen=True)
class LookupFormat:
    """A format that files have and Sterna does not compute in.

    becomes: the format of the same levels. main, rest: blocks of the first k, as many as `fit`
    divides, and of those that remain of K padded to 64. offset, step: level = step * code - offset.
    """

    becomes: str
    main: Blocks
    rest: Blocks | None = None
    fit: int = 64
    offset: int = 1
    step: int = 1

    def _sections(self, K: int) -> list[tuple[Blocks, int]]:
        """Return blocks and their k, of rows of K columns."""
        padded = -(-K // 64) * 64
        first = padded // self.fit * self.fit
        rest = [] if self.rest is None else [(self.rest, padded - first)]
        return [(self.main, first), *rest]

    def codes_shape(self, M: int, K: int) -> tuple[int, int]:
        """Return (tiles, bytes of a tile) of a matrix [M, K]."""
        nbytes = sum(k // blocks.k * blocks.nbytes for blocks, k in self._sections(K))
        return -(-M // ROWS), nbytes

    def levels(self, codes: Bytes, M: int, K: int) -> npt.NDArray[np.int8]:
        """Decode uint8 [tiles, bytes] to int8 [M, K]; not all need be levels of the codebook."""
        parts, start = [], 0
        for blocks, k in self._sections(K):
            end = start + k // blocks.k * blocks.nbytes
            parts.append(blocks.decoded(codes[:, start:end]))
            start = end
        rows = np.concatenate(parts, axis=2).reshape(-1, sum(part.shape[2] for part in parts))
        return (self.step * rows[:M, :K].astype(np.int8) - self.offset).astype(np.int8)


_PAIRS = Blocks(3, 2)
_TL1 = LookupFormat("i2", _PAIRS)
_TL2 = LookupFormat("t5", Blocks(3, 3, mirrored=True), _PAIRS, fit=48)
_TMAC2 = LookupFormat("i2", Blocks(2, 4, planes=2))
_BY_NAME = {
    "tl1_0": _TL1,
    "tl1_1": _TL1,
    "tl2_0": _TL2,
    "tl2_1": _TL2,
    "tmac2_0": _TMAC2,
    "tmac2_1": _TMAC2,
    "elut4": LookupFormat("i2p", Blocks(4, 2), offset=3, step=2),
    "elut5": LookupFormat("i4", Blocks(5, 2, mirrored=True), offset=2),
}


def lookup_format(name: str) -> LookupFormat | None:
    """Return the format of this name in files, with or without a suffix (`tl1_1:row`)."""
    base, colon, scale = name.partition(":")
    known = _BY_NAME.get(base)
    return replace(known, becomes=f"{known.becomes}{colon}{scale}") if known else None
