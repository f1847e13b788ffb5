"""Methods of rounding real weights to powers of two: nearest, DenseShift, S3 and DeepShift-Q.

A weight becomes sign * 2^e * s, with a sign of -1 or 1 (0 where the scheme has a zero), an exponent
e = 0..E and a scale s > 0, one for the matrix, for each row, or for each N weights of a row:

    nearest, denseshift(T)   e = round(log2(|w| / s)), at least 0 and at most E; denseshift: E = T
    s3(T)                    the same with E = T - 1, and 0 where |w| < s / 2
    deepshift_q(bits)        the same with E = 2^(bits - 1) - 2, s a power of two, and 0 only for 0

where log2 is rounded: 2^e s represents the |w| from 2^(e - 1/2) s to 2^(e + 1/2) s. The literature
calls this the nearest power of two. The nearest in value would have bounds at 3/4 2^e s and 3/2 2^e
s, not at 0.71 and 1.41. No float32 lies on such a bound, since sqrt(2) is irrational, so rounding
is exact and has no ties.

The scale is searched for. The largest level, 2^E s, goes down from sqrt(2) max|w| in steps of
1/2 octave, over 8 - E octaves and at least two: with few exponents, clipping the largest weights
pays. Then it goes from 3/8 octave below the best of these to 3/8 above in steps of 1/8. If s must
be a power of two, it starts at 2^round(log2 max|w|) and the steps are octaves. The first scale of
least squared error is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError, shown
from sterna.formats.arithmetic import F32
from sterna.formats.power_of_two import PotLevels, checked_weights

__all__ = ["METHODS", "Quantizer", "deepshift_q", "denseshift", "quantizer", "s3"]

F64 = npt.NDArray[np.float64]
RANGE = 8  # octaves below the largest weight at which the smallest level is tried
FINE = np.arange(-3, 4) / 8  # octaves around the best of steps of 1/2
MAX_EXPONENT = 31  # of rounding: 2^-31 of the largest weight is below any error
CHUNK = 1 << 16  # weights rounded at a time: float64 in the second-level cache
SQRT_HALF = math.sqrt(0.5)
TINY, HUGE = float(np.finfo(np.float32).smallest_subnormal), float(np.finfo(np.float32).max)
MANTISSA_BITS, BIAS, MANTISSA_BITS_64 = 23, 127, 52  # of float32, and of float64


@dataclass(frozen=True)
class Quantizer:
    """A rule of rounding: call it with weights float [M, K] and the place of scales.

    max_exponent: E above; zero: "none", "near" (for |w| < s / 2) or "exact" (for 0 only);
    power_scale: s is a power of two.
    """

    name: str
    max_exponent: int
    zero: str = "none"
    power_scale: bool = False

    def __call__(self, w: Any, scale: str = "row") -> PotLevels:
        """Round weights [M, K] to PotLevels.

        scale: "tensor", "row" or "group:N", N dividing K. A weight of 0 becomes +2^0 where there is
        no zero; `PotLevels.zeros` counts them. Raises NonFiniteError for NaN and infinities, naming
        the element, and RequestError.
        """
        weights = checked_weights(w, self.name)
        M, K = weights.shape
        size = _group(scale, K, self.name)
        groups = K // size if size else 1
        blocks = weights.reshape(M * groups, size)
        scales = self._scales(blocks, shared=scale == "tensor")
        signs = np.where(blocks < 0, -1, 1).astype(np.int8)
        exponents = np.empty(blocks.shape, np.uint8)
        for rows, magnitudes in _chunks(blocks):
            exponents[rows], nonzero = self._rounded(magnitudes, scales[rows])
            if nonzero is not None:
                signs[rows] *= nonzero
        zeros = int((weights == 0).sum()) if self.zero == "none" else 0
        if scale == "tensor":
            shaped = scales[:1].reshape(()) if M else np.ones((), np.float32)
        else:
            shaped = scales if scale == "row" else scales.reshape(M, groups)
        return PotLevels(signs.reshape(M, K), exponents.reshape(M, K), shaped.copy(), zeros)

    def _scales(self, blocks: npt.NDArray[Any], shared: bool) -> F32:
        """Choose a scale for each block [B, n], float32 [B]; shared: the same for all."""
        top = np.abs(blocks).max(axis=1, initial=0.0).astype(np.float64)
        if shared:
            top[:] = top.max(initial=0.0)
        octaves = np.arange(max(2, RANGE - self.max_exponent))
        if self.power_scale:
            top = np.where(top > 0, np.ldexp(1.0, _round_log2(top)), 0.0)
            top *= self._best(blocks, top, -octaves, shared)
        else:
            top *= self._best(blocks, top, 0.5 - np.arange(2 * len(octaves)) / 2, shared)
            top *= self._best(blocks, top, FINE, shared)
        # No level overflows and no scale is 0: a block of zeros has the smallest scale.
        level = np.minimum(top, 2.0**127 if self.power_scale else HUGE)
        lowest = np.maximum(np.ldexp(level, -self.max_exponent), TINY)
        return np.asarray(lowest, np.float32)

    def _best(
        self, blocks: npt.NDArray[Any], top: F64, octaves: npt.NDArray[Any], shared: bool
    ) -> F64:
        """Find the octaves for which 2^octaves * `top` [B], the largest level, has the least error.

        Returns float64 [B]. Errors are of |w| / top in float32: at a bound between two exponents
        either will do.
        """
        errors = np.empty((len(octaves), len(blocks)))
        for rows, magnitudes in _chunks(blocks):
            a = (magnitudes / np.where(top[rows] > 0, top[rows], 1)[:, None]).astype(np.float32)
            for i, octave in enumerate(octaves):
                s = np.float32(2.0 ** (octave - self.max_exponent))
                e = a.view(np.int32) - np.float32(s * SQRT_HALF).view(np.int32)
                e >>= MANTISSA_BITS
                np.clip(e, 0, self.max_exponent, out=e)
                e += BIAS
                e <<= MANTISSA_BITS
                made = e.view(np.float32)  # 2^e, of its bits
                made *= s
                if self.zero != "none":
                    made *= a >= s / 2 if self.zero == "near" else a > 0
                made -= a
                errors[i, rows] = np.einsum("bn,bn->b", made, made)
        if shared:
            errors[:] = errors.sum(axis=1, keepdims=True)
        return np.asarray(np.exp2(octaves[errors.argmin(axis=0)]), np.float64)

    def _rounded(
        self, magnitudes: F64, scales: F32
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_] | None]:
        """|w| [b, n], scales [b] -> (exponents int64 [b, n], which are not 0; None: all)."""
        s = scales.astype(np.float64)[:, None]
        # floor(log2(a / b)) of positive floats is the difference of their bits, shifted. That s
        # sqrt(1/2) is rounded does not matter: |p/q - sqrt(1/2)| > 1e-15 for all p, q < 2^24.
        e = magnitudes.view(np.int64) - (s * SQRT_HALF).view(np.int64)
        e >>= MANTISSA_BITS_64
        np.clip(e, 0, self.max_exponent, out=e)
        if self.zero == "none":
            return e, None
        nonzero = magnitudes >= s / 2 if self.zero == "near" else magnitudes > 0
        e *= nonzero
        return e, nonzero


def denseshift(T: int) -> Quantizer:
    """Make the quantizer of levels +-2^0 .. +-2^T, T = 2..4 (DenseShift, arXiv 2208.09708)."""
    return Quantizer(f"denseshift{T}", _one_of("denseshift: T", T, (2, 3, 4)))


def s3(T: int) -> Quantizer:
    """Make the quantizer of levels 0, +-2^0 .. +-2^(T - 1) (S3, NeurIPS 2021), T = 2..4."""
    return Quantizer(f"s3-{T}", _one_of("s3: T", T, (2, 3, 4)) - 1, "near")


def deepshift_q(bits: int) -> Quantizer:
    """sign * 2^round(log2 |w|) with 2^(bits - 1) - 1 shifts, bits = 2..6 (DeepShift-Q, 2021).

    The remaining code is 0, for weights of 0; weights below the smallest level become this level.
    DeepShift's largest level is 1; here it is the power of two that suits the weights.
    """
    top = 2 ** (_one_of("deepshift_q: bits", bits, (2, 3, 4, 5, 6)) - 1) - 2
    return Quantizer(f"deepshift-q{bits}", top, "exact", power_scale=True)


def _group(scale: str, K: int, what: str) -> int:
    """Return the number of weights of a row that share a scale."""
    if scale in ("tensor", "row"):
        return K
    kind, _, digits = scale.partition(":") if isinstance(scale, str) else ("", "", "")
    valid = kind == "group" and digits.isascii() and digits.isdigit() and len(digits) < 10
    if not valid or int(digits) == 0:
        raise RequestError(f"{what}: scale must be tensor, row or group:N, but got {shown(scale)}")
    if K % int(digits):
        raise RequestError(f"{what}: groups must divide K={K}, but got {shown(scale)}")
    return int(digits)


def _chunks(blocks: npt.NDArray[Any]) -> Iterator[tuple[slice, F64]]:
    """|w| of some blocks at a time, float64: float32's subnormals are not subnormal there."""
    step = max(1, CHUNK // max(1, blocks.shape[1]))
    for start in range(0, len(blocks), step):
        rows = slice(start, start + step)
        yield rows, np.abs(blocks[rows], dtype=np.float64)


def _round_log2(x: F64) -> npt.NDArray[np.int64]:
    mantissa, exponent = np.frexp(x)  # in [1/2, 1)
    return exponent - (mantissa < SQRT_HALF)


def _one_of(what: str, value: int, values: tuple[int, ...]) -> int:
    if type(value) is not int or value not in values:
        raise RequestError(f"{what} must be one of {values}, but got {shown(value)}")
    return value


#: Name -> method; None: the nearest of all levels of the format.
METHODS: dict[str, Quantizer | None] = {
    "nearest": None,
    "denseshift2": denseshift(2),
    "denseshift3": denseshift(3),
    "denseshift4": denseshift(4),
    "s3": s3(3),
    "s3-4": s3(4),
    "deepshift-q": deepshift_q(4),
    "deepshift-q5": deepshift_q(5),
}


def quantizer(method: str, max_exponent: int, zero: bool, format: str) -> Quantizer:
    """Return the method for levels +-2^0 .. +-2^max_exponent, with 0 if `zero`, of `format`.

    Raises RequestError for an unknown method, or levels that the format lacks.
    """
    if not isinstance(method, str) or method not in METHODS:
        raise RequestError(f"method: must be one of {', '.join(METHODS)}, but got {shown(method)}")
    made = METHODS[method]
    if made is None:
        return Quantizer("nearest", min(max_exponent, MAX_EXPONENT), "near" if zero else "none")
    if made.max_exponent > max_exponent:
        raise RequestError(
            f"method: {method} has exponents up to {made.max_exponent}, but {format} up to "
            f"{max_exponent}; use a format of more, such as pot8"
        )
    if made.zero == "near" and not zero:
        raise RequestError(
            f"method: {method} rounds small weights to 0, but {format} has no zero; use pot4z"
        )
    if made.zero == "exact" and not zero:  # weights of 0 are rare: they become the smallest level
        return replace(made, zero="none")
    return made
