"""pot8: powers of two +-2^0 to +-2^31 in a byte (E5:P1), for float activations."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats.arithmetic import F32, first_index
from sterna.formats.layout import Layout
from sterna.formats.pot_levels import PowerFloats
from sterna.formats.scales import RowScales

UNIT = 2.0**31
MAX_SCALE = 2.0**96  # that UNIT times it, what kernels have, is a float32


class ByteFloats(PowerFloats):
    """The kernels decode 2^(e - 31), so their scale is 2^31 (`unit`) times as large."""

    @property
    def unit(self) -> float:
        return UNIT

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
        """sign * 2^e, float32 [M, K] -> sign << 7 | e, uint8 [M, K]."""
        codes = self.exponents(values).astype(np.uint8)
        codes |= np.signbit(values).astype(np.uint8) << 7
        return codes

    def quantize(self, w: F32, scale: str | None = None) -> tuple[npt.NDArray[Any], F32]:
        """Round w float32 [M, K] to levels; RequestError if they need a scale above MAX_SCALE."""
        values, s = super().quantize(w, scale)
        if (s > MAX_SCALE).any():
            at = first_index(np.abs(w) == np.abs(w).max())
            raise RequestError(
                f"{self.name}: weights must have a scale of at most 2^96, but element {at} is "
                f"{w[at]!s}; use pot16, or smaller weights"
            )
        return values, s

    def check_scales(self, scales: npt.NDArray[Any], M: int, K: int) -> F32:
        """Return the scale as float32 () or (M,); RequestError if the kernels' would overflow."""
        s = super().check_scales(scales, M, K)
        if (s > MAX_SCALE).any():
            raise RequestError(
                f"{self.name}: a scale must be at most 2^96, but got {s.max()}; "
                "use smaller exponents"
            )
        return s

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Return True: every byte is a power, since bits 5 and 6 do not count."""
        return True

    def decode(self, raw: F32) -> npt.NDArray[Any]:
        """sign * 2^(e - 31) -> sign * 2^e, float32 [M, K]."""
        return np.asarray(raw * np.float32(UNIT))


FORMAT = ByteFloats(
    name="pot8",
    layout=Layout("pot8"),
    bits=8.0,
    summary="powers of two, a byte (E5:P1), f32 activations",
    scales=RowScales("row"),
    low=0,
    high=31,
)
