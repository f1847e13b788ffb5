"""nvfp4: E2M1 floats of four bits with a float32 scale for every 16 k, for float activations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32
from sterna.formats.layout import Layout
from sterna.formats.scaled_floats import U8, GroupedFloats, ScaledFloats

MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


class E2M1(ScaledFloats):
    """The type float4_e2m1fn, 0, 1/2, 1, 3/2, 2, 3, 4, 6 and their negatives."""

    def code_values(self) -> F32:
        """Return the eight magnitudes, followed by the negative ones; 256 for all bytes."""
        values = np.array([*MAGNITUDES, *(-m for m in MAGNITUDES)], np.float32)
        return np.tile(values + np.float32(0), 16)  # -0 is 0, as kernels decode it

    def nearest(self, x: npt.NDArray[np.float64]) -> U8:
        """Round |x| <= 6 to codes."""
        values = np.array(MAGNITUDES)
        size, middles = np.abs(x), (values[1:] + values[:-1]) / 2
        codes = np.searchsorted(middles, size)
        codes += (codes % 2 == 1) & np.isin(size, middles)  # of two as near the even code
        return (codes | np.signbit(x) << 3).astype(np.uint8)


FORMAT = E2M1(
    name="nvfp4",
    layout=Layout("nvfp4"),
    bits=6.0,
    summary="four-bit floats (NVFP4), f32 activations",
    scales=GroupedFloats(k=16),
    stored=2.0**-25,
    code_bits=4,
)
