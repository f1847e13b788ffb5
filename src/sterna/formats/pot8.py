"""pot8: powers of two +-2^0 to +-2^31 in a byte (E5:P1), for float activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.base import PackedWeight
from sterna.formats.pot_levels import PowerFloats


@dataclass(frozen=True)
class ByteFloats(PowerFloats):
    """The kernels decode 2^(e - 31), so their scale is 2^31 (`unit`) times as large."""

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """sign * 2^e -> sign << 7 | e."""
        codes = self.exponents(values).astype(np.uint8)
        codes |= np.signbit(values).astype(np.uint8) << 7
        return codes

    def packed_scale(self, scale: npt.NDArray[Any], M: int, K: int) -> npt.NDArray[Any]:
        """The scale as float32; RequestError where the kernels' would overflow."""
        s = super().packed_scale(scale, M, K)
        if (s > 2.0**96).any():
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
