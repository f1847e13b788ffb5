"""The interface of scale layouts.

It answers everything that depends on the place of scales, so that no other code distinguishes them.
Scales have two forms. Rounding returns and users give values, float32 of `shape` (or () for one
that all share). Kernels read and files have packed scales, the array of a PackedWeight.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.codebook import Codebook
from sterna.formats.layout import Layout

__all__ = ["KernelGroups", "ScaleLayout"]

Packed = npt.NDArray[Any]
Levels = npt.NDArray[Any]
#: The native core's arguments for scales in groups: lines uint8 [tiles, bytes], k of a scale, k of
#: a scale of activations, the numbers' name, whether there are minima, and the value of a level.
KernelGroups = tuple[npt.NDArray[np.uint8], int, int, str, bool, float]


class ScaleLayout(ABC):
    """Where the scales of a matrix [M, K] lie and what numbers they are.

    group: k of a scale; 0: a scale for each row or for all of the matrix.
    x_group: activations that share a scale in int8; 0: all of a token.
    default: where rounding puts scales: "none", "tensor", "row" or "group".
    packed_dtype: the dtype of packed scales.
    """

    group: int
    x_group: int
    default: str
    packed_dtype: type[np.generic]

    @property
    def scaled(self) -> bool:
        """Whether there are scales at all."""
        return True

    @property
    def block(self) -> int:
        """K is a multiple of this number; unless it is 1, each block of as many k is rounded
        separately."""
        return 1

    @property
    def minima(self) -> bool:
        """Whether a weight is level * scale + minimum."""
        return False

    @property
    @abstractmethod
    def single(self) -> bool:
        """Whether a weight is just its level times one number of the file."""

    @property
    @abstractmethod
    def any_number(self) -> bool:
        """Whether any number may be a scale, but for the rounding of floats."""

    @property
    @abstractmethod
    def summary(self) -> str | None:
        """The description in `sterna formats`; None: there are no scales."""

    # ----------------------------------------------------------------------------------- values

    @abstractmethod
    def shape(self, M: int, K: int) -> tuple[int, ...]:
        """Shape of the scales of a matrix [M, K], one for each place where one lies."""

    @abstractmethod
    def check_given(self, shape: tuple[int, ...], M: int, K: int, name: str) -> None:
        """Raise RequestError for an impossible shape, before scales are looked at."""

    @abstractmethod
    def check(self, scales: npt.NDArray[Any], M: int, K: int, name: str) -> F32:
        """Round scales of `shape` or () to values that can be packed, as float32.

        RequestError for a wrong shape or a value that cannot be packed, NonFiniteError; name: the
        format's, for the message.
        """

    @abstractmethod
    def joined(self, parts: Sequence[tuple[int, F32]]) -> F32:
        """Join scales of parts, (rows, scales) each, whose rows follow one another."""

    @abstractmethod
    def weights(self, levels: Levels, scales: F32, value: float) -> F32:
        """Compute the weights, float32 [M, K], of levels [M, K] (or floats) and their scales.

        value: the weight of a level of 1, before its scale.
        """

    # ------------------------------------------------------------------------------------ packed

    @abstractmethod
    def nbytes(self, layout: Layout, M: int, K: int) -> int:
        """Count the bytes of scales that one pass over a packed matrix reads."""

    @property
    @abstractmethod
    def kinds(self) -> tuple[str, ...]:
        """Words of packed files for the place of scales: "tensor" or "row", or "group:N"."""

    @abstractmethod
    def kind_of(self, packed: Packed) -> str:
        """Return the one of `kinds` that packed scales are of."""

    @abstractmethod
    def packed_shape(self, kind: str, layout: Layout, M: int, K: int) -> tuple[int, ...]:
        """Shape of packed scales for one of `kinds`."""

    @abstractmethod
    def pack(self, scales: F32, layout: Layout, M: int, K: int) -> Packed:
        """Pack scales as `check` returns them into a packed array."""

    @abstractmethod
    def unpack(self, packed: Packed, layout: Layout, M: int, K: int) -> F32:
        """Return the values of a packed array, of `shape` or ()."""

    @abstractmethod
    def rows_of(self, packed: Packed, rows: slice, layout: Layout) -> Packed:
        """Return the packed array for some rows, which begin with a tile."""

    @abstractmethod
    def stacked(self, parts: Sequence[Packed], M: int, rows: int) -> Packed:
        """Join packed arrays of matrices of M rows; each takes `rows`, which are whole tiles."""

    @abstractmethod
    def valid(self, packed: Packed, layout: Layout, threads: int) -> bool:
        """Whether scales from an untrusted file are finite and in range."""

    @abstractmethod
    def for_kernels(
        self, packed: Packed, M: int, rows: int, unit: float, value: float
    ) -> tuple[F32 | None, KernelGroups | None]:
        """Make the native core's arguments: a scale for each row of all tiles, or groups of scales.

        rows: those of all tiles, including the matrix's M; unit and value: as of a Codebook. Raises
        TypeError and ValueError for arrays of another kind.
        """

    # --------------------------------------------------------------------------------- rounding

    @abstractmethod
    def check_weights(self, w: F32, name: str) -> None:
        """Raise RequestError for real weights [M, K] that are too large for any scale."""

    def settled(
        self, blocks: F32, levels: Levels, scales: F32, codebook: Codebook
    ) -> tuple[Levels, F32]:
        """Correct levels [B, block], scales [B, ...] of rounded blocks after rounding the scales.

        If packed scales have few bits, other levels may be nearer to the weights.
        """
        return levels, scales

    def typical(self, scales: F32, factor: float) -> F32:
        """Return one scale for all places: the median of some blocks' [B, ...], times a factor."""
        return np.asarray(np.median(np.abs(scales), axis=0) * factor, np.float32)

    def repeated(self, scale: F32, layout: Layout, K: int) -> Packed:
        """Repeat one scale in a packed array for the rows of a tile of K columns."""
        rows = layout.tile_rows
        scales = np.ascontiguousarray(np.broadcast_to(scale, self.shape(rows, K)))
        return self.pack(scales, layout, rows, K)
