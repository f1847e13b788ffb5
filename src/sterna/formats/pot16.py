"""pot16: powers of two +-2^-126 to +-2^127, as bf16 without a mantissa (E8:P1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.bf16 import FORMAT as BF16
from sterna.formats.layout import Layout
from sterna.formats.pot_levels import PowerFloats
from sterna.formats.scales import RowScales


class HalfFloats(PowerFloats):
    """E8:P1 is bf16's sign and exponent; its kernels are those of bf16, and a scale for rows."""

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """sign * 2^e, float32 [M, K] -> sign << 15 | (e + 127) << 7, uint16 [M, K]."""
        self.exponents(values)
        return BF16.encode(np.asarray(values, np.float32))

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether all are finite."""
        return BF16.codes_valid(codes, threads)


FORMAT = HalfFloats(
    name="pot16",
    layout=Layout("bf16"),
    bits=16.0,
    summary="powers of two as bf16 (E8:P1), f32 activations",
    scales=RowScales("row"),
    low=-126,
    high=127,
)
