"""`Blank`: a source of weights of any shape that is asked for, as a file could have them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sterna import _native, formats
from sterna.errors import ModelFormatError
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.weights.sources import STACKED, Linear, Stacking

MOST = 1 << 20  # values of a tensor: a file of more is refused, as it has not the bytes


@dataclass
class Blank:
    """Zeros and ones, float32. complete: whether it has what a model may lack."""

    complete: bool = False
    tensors_left: int = 500
    modules: dict[str, PackedWeight] = field(default_factory=dict)
    tensors: dict[str, np.ndarray] = field(default_factory=dict)

    def has(self, name: str) -> bool:
        """All, or nothing."""
        return self.complete

    def vector(self, name: str, *shape: int) -> np.ndarray:
        """Ones."""
        self._take(name, *shape)
        return np.ones(shape, np.float32)

    def matrix(self, name: str, parts: list[Linear]) -> list[PackedWeight]:
        """One weight."""
        return [self.table(name, sum(part.M for part in parts), parts[0].K)]

    def experts(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> list[Experts]:
        """One weight of all."""
        M, K = sum(part.M for part in parts), parts[0].K
        self._take(name, count, M, K)
        rows = Experts.rows_of(formats.get("f32").tile_rows, count, M)
        return [Experts(self.table(name, rows, K), count, M)]

    def experts_bias(
        self, name: str, parts: list[Linear], count: int, stacking: Stacking = STACKED
    ) -> np.ndarray:
        """Ones."""
        return self.vector(name, count, sum(part.M for part in parts))

    def table(self, name: str, M: int, K: int) -> PackedWeight:
        """Zeros."""
        self._take(name, M, K)
        f = formats.get("f32")
        f.check_shape(M, K)
        codes = _native.alloc(f.n_tiles(M) * f.tile_bytes(K))
        codes[:] = 0
        shaped = codes.reshape(f.n_tiles(M), f.tile_bytes(K))
        return PackedWeight(f, M, K, shaped, np.ones((), np.float32))

    def shadow(self, table: PackedWeight) -> Shadow | None:
        """None."""
        return None

    def _take(self, name: str, *shape: int) -> None:
        self.tensors_left -= 1
        if self.tensors_left < 0 or math.prod(shape) > MOST:
            raise ModelFormatError(file="blank", field=name, expected="a tensor", got="none")
