"""pot16: powers of two +-2^-126 to +-2^127, as bf16 without a mantissa (E8:P1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.bf16 import FORMAT as BF16
from sterna.formats.pot_levels import PowerFloats


@dataclass(frozen=True)
class HalfFloats(PowerFloats):
    """E8:P1 is bf16's sign and exponent; its kernels are those of bf16, and a scale for rows."""

    def encode(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """sign * 2^e -> sign << 15 | (e + 127) << 7."""
        self.exponents(values)
        return BF16.encode(np.asarray(values, np.float32))

    def codes_valid(self, codes: npt.NDArray[np.uint8], threads: int) -> bool:
        """Whether all are finite."""
        return BF16.codes_valid(codes, threads)


FORMAT = HalfFloats(
    name="pot16", layout="bf16", bits=16.0,
    summary="powers of two as bf16 (E8:P1), f32 activations",
    integer=False, default_scale="row", group_scales=False, low=-126, high=127, step_k=2,
)  # fmt: skip
