"""pot8: powers of two +-2^0 to +-2^31 in a byte (E5:P1), for float activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.base import PackedWeight
from sterna.formats.pot_levels import PowerFloats

MAX_SCALE = 2.0**96  # that 2^31 times it, what kernels have, is a float32


@dataclass(frozen=True)
class ByteFloats(PowerFloats):
    """The kernels decode 2^(e - 31), so their scale is 2^31 (`unit`) times as large."""

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """sign * 2^e -> sign << 7 | e."""
        codes = self.exponents(values).astype(np.uint8)
        codes |= np.signbit(values).astype(np.uint8) << 7
        return codes

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """As of all powers; RequestError for weights so large that the scale would be."""
        values, s = super().quantize(w, scale)
        if (s > MAX_SCALE).any():
            at = first_index(np.abs(w) == np.abs(w).max())
            raise RequestError(
                f"{self.name}: weights must have a scale of at most 2^96, but element {at} is "
                f"{w[at]!s}; use pot16, or smaller weights"
            )
        return values, s

    def packed_scale(self, scale: npt.NDArray[Any], M: int, K: int) -> npt.NDArray[Any]:
        """The scale as float32; RequestError where the kernels' would overflow."""
        s = super().packed_scale(scale, M, K)
        if (s > MAX_SCALE).any():
            raise RequestError(
                f"{self.name}: a scale must be at most 2^96, but got {s.max()}; "
                "use smaller exponents"
            )
        return s

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Every byte is a power: bits 5 and 6 do not count."""
        return True

    def unpack(self, packed: PackedWeight, isa: str, threads: int) -> npt.NDArray[Any]:
        """Tiles -> float32 sign * 2^e [M, K]."""
        return np.asarray(super().unpack(packed, isa, threads) * np.float32(self.unit))


FORMAT = ByteFloats(
    name="pot8", layout="pot8", bits=8.0, summary="powers of two, a byte (E5:P1), f32 activations",
    integer=False, default_scale="row", group_scales=False, unit=2.0**31, low=0, high=31,
)  # fmt: skip
