"""The int8 shadow of a float head, with bounds of its error. It makes the head exact and fast.

docs/explanation/exact-head.md derives the bounds. A shadow is made from the float rows when a model
is loaded. It is never stored, so no file can claim wrong bounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError
from sterna.formats.base import MAX_INTEGER_K
from sterna.formats.i8 import FORMAT as I8
from sterna.formats.packed_weight import PackedWeight

__all__ = ["Shadow"]


@dataclass(frozen=True)
class Shadow:
    """Rows s q of a matrix W [M, K], in the format i8, and float32 bounds [3, rows of all tiles].

    bounds: ||W_i - s q_i||, ||s q_i|| and max_k |W_ik - s q_ik| of every row i, or a little more.
    """

    rows: PackedWeight
    bounds: npt.NDArray[np.float32] = field(repr=False)

    @classmethod
    def of(cls, weight: PackedWeight, threads: int) -> Shadow:
        """Make the shadow of a packed float weight; RequestError for integers, or a K too large.

        The same bits for every kernel unit and thread count.
        """
        if weight.format.scaled:
            raise RequestError(
                f"head: an exact head screens bf16, f16 or f32 rows, but got {weight.format}; "
                "use --head int8"
            )
        if weight.K > MAX_INTEGER_K:
            raise RequestError(
                f"head: an exact head takes at most K={MAX_INTEGER_K}, but got K={weight.K}; "
                f"use --head {weight.format}"
            )
        codes, scale, bounds = _native.shadow(weight.native(), _native.isas()[-1], threads)
        rows = PackedWeight(I8, weight.M, weight.K, codes, scale[: weight.M])
        return cls(rows, bounds)

    @property
    def nbytes(self) -> int:
        """Bytes that one screening reads."""
        return self.rows.nbytes + self.bounds.nbytes
