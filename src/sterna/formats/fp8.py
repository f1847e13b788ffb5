"""fp8: E4M3 floats of eight bits with a float32 scale for every 32 k, for float activations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.layout import Layout
from sterna.formats.scaled_floats import U8, GroupedFloats, ScaledFloats

MANTISSA, LOWEST, BIAS = 3, -6, 7  # bits, the least exponent, and the bias


class E4M3(ScaledFloats):
    """The type float8_e4m3fn: values up to 448, no infinities, and NaN for 127 and 255."""

    def code_values(self) -> F32:
        """m 2^-9 for exponents of 0, else (8 + m) 2^(e - 10)."""
        code = np.arange(128)
        exponent, mantissa = code >> MANTISSA, code & 7
        normal = exponent > 0
        values = np.ldexp(mantissa + 8.0 * normal, np.where(normal, exponent, 1) - BIAS - MANTISSA)
        values[127] = np.nan
        return np.concatenate([values, -values]).astype(np.float32)

    def nearest(self, x: npt.NDArray[np.float64]) -> U8:
        """Round |x| <= 448 to codes."""
        exponent = np.where(x == 0, LOWEST, np.maximum(np.frexp(x)[1] - 1, LOWEST))
        eighths = np.rint(np.ldexp(np.abs(x), MANTISSA - exponent)).astype(np.int32)
        codes = (exponent + BIAS << MANTISSA) + eighths - 8
        return np.asarray(codes | np.signbit(x) << 7, np.uint8)


FORMAT = E4M3(
    name="fp8",
    layout=Layout("fp8"),
    bits=9.0,
    summary="eight-bit floats (E4M3), f32 activations",
    scales=GroupedFloats(k=32),
    stored=2.0**120,
)
