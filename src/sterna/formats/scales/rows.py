"""A scale for each row, or one for the whole matrix; and none, for formats of plain floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32
from sterna.formats.layout import Layout
from sterna.formats.scales.base import KernelGroups, Levels, Packed, ScaleLayout

__all__ = ["NoScales", "RowScales"]


@dataclass(frozen=True)
class RowScales(ScaleLayout):
    """float32, () for all or (M,) for rows; values and packed array are the same."""

    default: str = "tensor"  # or "row"
    group = 0
    x_group = 0
    packed_dtype: type[np.generic] = np.float32

    @property
    def single(self) -> bool:
        """True: a row has one number."""
        return True

    @property
    def any_number(self) -> bool:
        """Any float32 is a scale."""
        return True

    @property
    def summary(self) -> str | None:
        return self.default

    def shape(self, M: int, K: int) -> tuple[int, ...]:
        return (M,)

    def check_given(self, shape: tuple[int, ...], M: int, K: int, name: str) -> None:
        """Raise RequestError unless the shape is () or (M,)."""
        if shape not in ((), (M,)):
            raise RequestError(f"{name}: scale must have shape () or ({M},), but got {shape}")

    def check(self, scales: npt.NDArray[Any], M: int, K: int, name: str) -> F32:
        """Return scales as float32, all of which can be packed."""
        return np.asarray(scales, np.float32)

    def joined(self, parts: Sequence[tuple[int, F32]]) -> F32:
        """Return () if all parts have the same single scale, else (rows,)."""
        scales = [scale for _, scale in parts]
        if all(s.ndim == 0 for s in scales) and len(set(map(float, scales))) == 1:
            return np.asarray(scales[0], np.float32)
        return np.concatenate([np.broadcast_to(scale, (rows,)) for rows, scale in parts])

    def weights(self, levels: Levels, scales: F32, value: float) -> F32:
        """Multiply levels [M, K] by scales () or (M,), to float32 [M, K]."""
        row = np.asarray(scales * np.float32(value)).reshape(-1, 1)
        return np.asarray(levels.astype(np.float32) * row)

    def nbytes(self, layout: Layout, M: int, K: int) -> int:
        """float32 for the rows of all tiles."""
        return 4 * layout.n_tiles(M) * layout.tile_rows

    @property
    def kinds(self) -> tuple[str, ...]:
        return "tensor", "row"

    def kind_of(self, packed: Packed) -> str:
        """Return the kind, by the shape."""
        return "row" if packed.ndim else "tensor"

    def packed_shape(self, kind: str, layout: Layout, M: int, K: int) -> tuple[int, ...]:
        return (M,) if kind == "row" else ()

    def pack(self, scales: F32, layout: Layout, M: int, K: int) -> Packed:
        """Copy the scales, () or (M,)."""
        return np.array(scales, np.float32)

    def unpack(self, packed: Packed, layout: Layout, M: int, K: int) -> F32:
        """Return the scales, () or (M,)."""
        return np.asarray(packed, np.float32)

    def rows_of(self, packed: Packed, rows: slice, layout: Layout) -> Packed:
        """Return a part of them, which shares their memory, or the one of all."""
        return packed[rows] if packed.ndim else packed

    def stacked(self, parts: Sequence[Packed], M: int, rows: int) -> Packed:
        """Return (all rows,), with 0 for rows that fill tiles."""
        scale = np.zeros((len(parts), rows), np.float32)
        for i, part in enumerate(parts):
            scale[i, :M] = part
        return scale.reshape(-1)

    def valid(self, packed: Packed, layout: Layout, threads: int) -> bool:
        """Whether all are finite."""
        return bool(np.isfinite(packed).all())

    def for_kernels(
        self, packed: Packed, M: int, rows: int, unit: float, value: float
    ) -> tuple[F32 | None, KernelGroups | None]:
        """unit * scale for the rows of all tiles, float32; 0 where there is no row."""
        scale = np.zeros(rows, np.float32)
        scale[:M] = packed * np.float32(unit)
        return scale, None

    def check_weights(self, w: F32, name: str) -> None:
        """Any weights have a scale."""

    def repeated(self, scale: F32, layout: Layout, K: int) -> Packed:
        """Return the one scale, ()."""
        return np.array(scale)


@dataclass(frozen=True)
class NoScales(RowScales):
    """Values are the weights themselves; the packed scale, 1 of shape (), is never read."""

    default: str = "none"

    @property
    def scaled(self) -> bool:
        return False

    @property
    def summary(self) -> str | None:
        return None

    def joined(self, parts: Sequence[tuple[int, F32]]) -> F32:
        return np.ones((), np.float32)

    def stacked(self, parts: Sequence[Packed], M: int, rows: int) -> Packed:
        return np.ones((), np.float32)

    def weights(self, levels: Levels, scales: F32, value: float) -> F32:
        """Return values [M, K] as float32."""
        return np.asarray(levels, dtype=np.float32)

    def nbytes(self, layout: Layout, M: int, K: int) -> int:
        return 0

    def for_kernels(
        self, packed: Packed, M: int, rows: int, unit: float, value: float
    ) -> tuple[F32 | None, KernelGroups | None]:
        return None, None
