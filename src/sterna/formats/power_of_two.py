"""Weights as powers of two: signs, exponents and scales, their checks and the error of rounding.

A weight is sign * 2^e * s, with a sign of -1 or 1 (0 where the scheme has a zero), an exponent
e = 0..E and a scale s > 0, one for the matrix, for each row, or for each N weights of a row.
`pot_methods` rounds real weights to it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.errors import NonFiniteError, RequestError
from sterna.formats.arithmetic import F32, first_index

__all__ = [
    "PotLevels",
    "RoundingLoss",
    "check_scale",
    "checked_weights",
    "error",
    "from_latents",
]


class RoundingLoss(NamedTuple):
    """The error of rounding.

    relative_rms: the error's root mean square over the weights'; max: the largest |w' - w|; snr_db:
    signal-to-noise ratio in decibels, infinite if nothing is lost.
    """

    relative_rms: float
    max: float
    snr_db: float


@dataclass(frozen=True)
class PotLevels:
    """Weights [M, K] as sign * 2^exponent * scale.

    signs: int8 [M, K] of -1, 0 and 1; exponents: uint8 [M, K], 0 where the sign is; scale: float32
    (), (M,) or [M, groups], finite and positive; zeros: weights of 0 that became +2^0, since the
    scheme has no zero. Raises RequestError and NonFiniteError for others, naming the element.
    """

    signs: npt.NDArray[np.int8]
    exponents: npt.NDArray[np.uint8]
    scale: F32
    zeros: int = 0

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        shape = self.signs.shape
        if len(shape) != 2 or self.exponents.shape != shape:
            raise RequestError(
                "power of two: signs and exponents must both have the shape [M, K], but got "
                f"{shape} and {self.exponents.shape}"
            )
        if self.signs.dtype != np.int8 or self.exponents.dtype != np.uint8:
            raise RequestError(
                "power of two: signs must be int8 and exponents uint8, but got "
                f"{self.signs.dtype} and {self.exponents.dtype}"
            )
        if (wrong := np.abs(self.signs) > 1).any():
            at = first_index(wrong)
            raise RequestError(
                f"power of two: signs must be -1, 0 or 1, but element {at} is {self.signs[at]}; "
                "put the size of a weight into its exponent"
            )
        check_scale(self.scale, *shape, "power of two")

    @property
    def shape(self) -> tuple[int, int]:
        """(M, K)."""
        M, K = self.signs.shape
        return M, K

    def levels(self) -> F32:
        """sign * 2^exponent, float32 [M, K]; RequestError for an exponent of 128 or more."""
        if (wrong := self.exponents > 127).any():
            at = first_index(wrong)
            raise RequestError(
                f"power of two: 2^e must be a float32, but element {at} has the exponent "
                f"{self.exponents[at]}; use a larger scale"
            )
        return np.ldexp(self.signs.astype(np.float32), self.exponents.astype(np.int32))

    def values(self) -> F32:
        """Return the weights, float32 [M, K]: exact, infinite from 2^128 on."""
        M, K = self.shape
        scale = np.asarray(self.scale, np.float32)
        per_row = (
            scale.reshape(-1, 1) if scale.ndim < 2 else np.repeat(scale, K // len(scale[0]), 1)
        )
        with np.errstate(over="ignore", under="ignore"):
            signed = self.signs * np.broadcast_to(per_row, (M, K))
            return np.ldexp(signed, self.exponents.astype(np.int32))


def from_latents(w_sign: Any, w: list[Any], w_sparse: Any = None, scale: Any = 1.0) -> PotLevels:
    """Convert the trained parameters of a DenseShift or S3 layer.

    w_sign, each of w = [w_1, .., w_T] and w_sparse: real [M, K]; scale: as of PotLevels. By
    equations 1 to 4 of "Demystifying Power-of-Two Quantization", the exponent is S_T of
    S_t = 1(w_t) (S_(t-1) + 1), S_0 = 0, where 1(x) is 1 for x >= 0 and else 0. The sign is
    2 1(w_sign) - 1, times 1(w_sparse) if given. Raises NonFiniteError and RequestError.
    """
    if len(w) > 255:
        raise RequestError(f"from_latents: w must be at most 255 arrays, but got {len(w)}")
    positive = checked_weights(w_sign, "w_sign") >= 0
    exponents = np.zeros(positive.shape, np.uint8)
    for t, latent in enumerate(w, 1):
        values = _latent(latent, f"w_{t}", positive.shape)
        exponents = np.where(values >= 0, exponents + 1, 0).astype(np.uint8)
    signs = np.where(positive, 1, -1).astype(np.int8)
    if w_sparse is not None:
        signs[_latent(w_sparse, "w_sparse", positive.shape) < 0] = 0
        exponents[signs == 0] = 0
    return PotLevels(signs, exponents, np.asarray(scale, np.float32))


def error(w: Any, levels: PotLevels) -> RoundingLoss:
    """Return the error of `levels` as weights [M, K], in float64."""
    before = checked_weights(w, "error").astype(np.float64)
    if before.shape != levels.shape:
        raise RequestError(f"error: shapes must agree, but got {before.shape} and {levels.shape}")
    lost = levels.values() - before
    signal, noise = float((before**2).sum()), float((lost**2).sum())
    largest = float(np.abs(lost).max(initial=0.0))
    if noise == 0:
        return RoundingLoss(0.0, largest, math.inf)
    if signal == 0:
        return RoundingLoss(math.inf, largest, -math.inf)
    return RoundingLoss(math.sqrt(noise / signal), largest, 10 * math.log10(signal / noise))


def check_scale(scale: Any, M: int, K: int, what: str) -> F32:
    """Check scales of weights [M, K]; float32 (), (M,) or [M, groups], groups dividing K.

    Raises NonFiniteError, and RequestError for another shape or a scale that is not positive.
    Weights have their own signs, so a negative scale would be a mistake.
    """
    s = np.asarray(scale)
    if s.dtype.kind not in "iuf":
        raise RequestError(f"{what}: scale must be numeric, but got dtype {s.dtype}")
    fits = s.shape in ((), (M,), (M, K))  # without K there are no groups
    if s.ndim == 2 and len(s) == M and s.shape[1]:
        fits = K % s.shape[1] == 0 and s.shape[1] <= K
    if not fits:
        raise RequestError(
            f"{what}: scale must have the shape (), ({M},) or [{M}, groups] with groups dividing "
            f"K={K}, but got {s.shape}"
        )
    with np.errstate(over="ignore", under="ignore"):
        s = s.astype(np.float32)
    if (wrong := ~np.isfinite(s)).any():
        at = first_index(wrong)
        raise NonFiniteError(f"{what}: scale must be finite, but element {at} is {s[at]}")
    if (wrong := s <= 0).any():
        at = first_index(wrong)
        mixed = "some are negative: " if s[at] < 0 and (s > 0).any() else ""
        raise RequestError(
            f"{what}: scale must be positive, but {mixed}element {at} is {s[at]}; negate the signs "
            "of its weights instead"
        )
    return s


def checked_weights(w: Any, what: str) -> F32:
    """Convert weights to float32 [M, K], and check that they are finite."""
    weights = np.asarray(w)
    if weights.ndim != 2 or weights.dtype.kind not in "iuf":
        raise RequestError(
            f"{what}: weights must be numbers [M, K], but got {weights.dtype} {weights.shape}"
        )
    with np.errstate(over="ignore", under="ignore"):
        values = weights.astype(np.float32)
    if (wrong := ~np.isfinite(values)).any():
        at = first_index(wrong)
        raise NonFiniteError(
            f"{what}: weights must be finite float32, but element {at} is {weights[at]}; the "
            "file is damaged or its training diverged"
        )
    return np.ascontiguousarray(values)


def _latent(w: Any, what: str, shape: tuple[int, ...]) -> F32:
    values = checked_weights(w, what)
    if values.shape != shape:
        raise RequestError(f"{what}: must have w_sign's shape {shape}, but got {values.shape}")
    return values
