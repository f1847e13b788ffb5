"""Rounding and sums as the kernels do them, in numpy: what formats and their references share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "F32",
    "first_index",
    "fma_f32",
    "half_if_finite",
    "half_or_smallest",
    "inverse_or_zero",
    "mean_abs",
    "quantize_activations",
    "round_half_away",
]

F32 = npt.NDArray[np.float32]
SMALLEST_F16 = np.finfo(np.float16).smallest_subnormal


def quantize_activations(x: F32, smallest: float = 1e-5) -> tuple[npt.NDArray[np.int8], F32]:
    """x [N, K] -> (int8 [N, K] in [-127, 127], scale [N]): symmetric, per row, half to even.

    A row's largest |x| counts as `smallest` at least.
    """
    absmax = np.maximum(np.abs(x).max(axis=1, initial=0.0), np.float32(smallest))
    inverse = np.float32(127) / absmax
    q = np.rint(x * inverse[:, None]).astype(np.int8)
    return q, (absmax / np.float32(127)).astype(np.float32)


def first_index(wrong: npt.NDArray[Any]) -> tuple[int, ...]:
    """Where the first element that is not 0 is, row by row: for a message that names it."""
    return tuple(int(i) for i in np.unravel_index((wrong != 0).argmax(), wrong.shape))


def mean_abs(w: F32, axis: int | None) -> F32:
    """Mean of |w| over `axis` (None: all of it), 0 of no weights: float32 () or [M]."""
    if not w.size:
        return np.zeros(w.shape[:1] if axis else (), np.float32)
    return np.asarray(np.abs(w).mean(axis=axis, dtype=np.float64), np.float32)


def inverse_or_zero(d: F32) -> F32:
    """1 / d in float32, and 0 where that is not finite: no f16 holds such a d but as 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    return np.asarray(np.where(np.isfinite(inverse), inverse, np.float32(0)), np.float32)


def half_if_finite(d: F32) -> F32:
    """d rounded to f16, but for what does not fit: `Format.check_scales` names that."""
    with np.errstate(over="ignore"):
        half = d.astype(np.float16).astype(np.float32)
    return np.asarray(np.where(np.isfinite(half), half, d), np.float32)


def half_or_smallest(d: F32) -> F32:
    """The same, but what is not 0 becomes no 0: the smallest f16 of its sign."""
    half = half_if_finite(d)
    lifted = np.where((half == 0) & (d != 0), np.copysign(SMALLEST_F16, d), half)
    return np.asarray(lifted, np.float32)


def round_half_away(x: F32) -> F32:
    """x to whole numbers, halves away from zero as C's roundf."""
    # Adding 0.5 could round 0.49999997 up; floor(2 |x|) tells halves apart exactly.
    twice = np.floor(np.abs(x) * np.float32(2))
    return np.asarray(np.sign(x) * np.floor((twice + 1) / 2), np.float32)


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
