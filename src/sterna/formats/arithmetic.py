"""Rounding in numpy, shared by formats."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "F32",
    "first_index",
    "half_if_finite",
    "half_or_smallest",
    "inverse_or_zero",
    "mean_abs",
    "round_half_away",
]

F32 = npt.NDArray[np.float32]
SMALLEST_F16 = np.finfo(np.float16).smallest_subnormal


def first_index(wrong: npt.NDArray[Any]) -> tuple[int, ...]:
    """Return the index of the first element that is not 0, row by row, for a message."""
    return tuple(int(i) for i in np.unravel_index((wrong != 0).argmax(), wrong.shape))


def mean_abs(w: F32, axis: int | None) -> F32:
    """Mean of |w| over `axis` (None: all of it), 0 of no weights: float32 () or [M]."""
    if not w.size:
        return np.zeros(w.shape[:1] if axis else (), np.float32)
    return np.asarray(np.abs(w).mean(axis=axis, dtype=np.float64), np.float32)


def inverse_or_zero(d: F32) -> F32:
    """Compute 1 / d in float32; 0 if that is not finite, since f16 holds such a d as 0."""
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.float32(1) / d
    return np.asarray(np.where(np.isfinite(inverse), inverse, np.float32(0)), np.float32)


def half_if_finite(d: F32) -> F32:
    """d float32, of any shape, rounded to f16; values out of range are kept, for checks to name."""
    with np.errstate(over="ignore"):
        half = d.astype(np.float16).astype(np.float32)
    return np.asarray(np.where(np.isfinite(half), half, d), np.float32)


def half_or_smallest(d: F32) -> F32:
    """Round as `half_if_finite`, but to the smallest f16 of a value's sign instead of 0."""
    half = half_if_finite(d)
    lifted = np.where((half == 0) & (d != 0), np.copysign(SMALLEST_F16, d), half)
    return np.asarray(lifted, np.float32)


def round_half_away(x: F32) -> F32:
    """x to whole numbers, halves away from zero as C's roundf."""
    # Adding 0.5 could round 0.49999997 up; floor(2 |x|) tells halves apart exactly.
    twice = np.floor(np.abs(x) * np.float32(2))
    return np.asarray(np.sign(x) * np.floor((twice + 1) / 2), np.float32)
