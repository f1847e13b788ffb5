"""Rounding and sums as the kernels do them, in numpy."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]


def quantize_activations(
    x: F32, smallest: float = 1e-5, low: bool = False
) -> tuple[npt.NDArray[np.int8], F32]:
    """x [N, K] -> (int8 [N, K] in [-127, 127], scale [N]): symmetric, per row, half to even.

    A row's largest |x| counts as `smallest` at least. low: the second plane, of what that leaves.
    """
    absmax = np.maximum(np.abs(x).max(axis=1, initial=0.0), np.float32(smallest))
    inverse, scale = np.float32(127) / absmax, absmax / np.float32(127)
    q = np.rint(x * inverse[:, None])
    if low:
        rest = x - q * scale[:, None]
        q = np.rint(rest * (np.float32(127 * 254) / absmax)[:, None])
        scale = scale / np.float32(254)
    return q.astype(np.int8), scale


def fma_f32(a: F32, b: F32, c: F32) -> F32:
    """a * b + c in float32, rounded once.

    The product is exact in float64; the sum is rounded to odd there, which makes the final rounding
    to float32 correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
    """
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total = product + addend
    part = total - product
    error = (product - (total - part)) + (addend - part)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)
    odd = np.where(inexact, bits + np.where(away, 1, -1), bits).view(np.float64)
    with np.errstate(over="ignore"):
        return odd.astype(np.float32)
