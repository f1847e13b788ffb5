"""Rounding that knows what the weights will meet: some inputs of a layer are larger than others.

A layer's output moves by (w - ŵ)^T x; over a text its mean square is (w - ŵ)^T E[x x^T] (w - ŵ),
of which the diagonal is kept:

    Σ_k e_k (w_k - ŵ_k)²,  e_k = E[x_k²]

This is what the importance matrix of llama.cpp weighs by (ggml-org/llama.cpp PR 4861), and the
channels that it tells apart are those that AWQ (arXiv 2306.00978, section 3) protects by scaling.
Here scales and levels are chosen for it, and the format stays what it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna.formats import codec
from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.codebook import Codebook
from sterna.formats.kquants import KQuant
from sterna.formats.pot_levels import Powers
from sterna.formats.scales import GroupScales

__all__ = ["check_weighted", "rounded"]

Array = npt.NDArray[Any]
#: Factors of the format's own scale, from each of which a search starts.
STARTS = tuple(np.float32(f) for f in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.12, 1.25, 1.4, 1.6))
REFITS = 2  # of the scale to the levels, and of the levels to the scale, from a start
LAST_REFITS = 4  # from the best
#: A part of the mean that every e_k gets: what the text had no use for is not worthless.
DAMPING = 0.01


def check_weighted(format: Format) -> None:
    """RequestError for a format whose rounding does not look at what the weights meet."""
    if format.codebook is None:
        raise RequestError(
            f"calibrate: {format} keeps floats, or rounds each by itself, so that no text can "
            "help; leave it out"
        )
    if isinstance(format, Powers) and format.method != "nearest":
        raise RequestError(
            f"calibrate: the method {format.method} rounds in one way only; leave one of them out"
        )


def rounded(format: Format, w: F32, squares: F32, scale: str | None = None) -> tuple[Array, F32]:
    """As `codec.rounded`, of less Σ_k e_k (w_k - ŵ_k)², or the same.

    w: float32 [M, K]; squares: E[x_k²], float32 [K]. Each scale is searched for by itself: from
    some factors of what the format's own rounding finds, least squares for the levels and nearest
    levels for the scale take turns. Raises as `codec.rounded` and `check_weighted`.
    """
    check_weighted(format)
    levels, scales = codec.rounded(format, w, scale)
    e = squares + np.float32(DAMPING) * squares.mean(dtype=np.float64)
    e = np.asarray(e / max(float(e.mean(dtype=np.float64)), 1e-30), np.float32)
    if not e.any():  # of inputs that are always 0, any weights are right
        return levels, scales
    if isinstance(format, KQuant):
        return _super_blocks(format, w, e, levels, scales)
    search = _Search(format, w, e, scales)
    made, parameters = search.best(levels)
    return made.reshape(w.shape), search.scales(parameters)


class _Search:
    """The weights as groups [..., G, n] that share a scale, and what they weigh.

    parameters: float32 [..., G, 1], the scale of each group, or with minima [..., G, 2].
    """

    def __init__(self, format: Format, w: F32, e: F32, scales: F32) -> None:
        assert format.codebook is not None
        self._format, self._codebook = format, format.codebook
        self._shape = np.shape(scales)
        self._minima = format.scales.minima
        M = len(w)
        group = format.scales.group
        self._w: F32
        self._e: F32
        if group:
            self._w, self._e = w.reshape(M, -1, group), e.reshape(1, -1, group)
        elif self._shape:
            self._w, self._e = w, e[None]
        else:
            self._w = w.reshape(1, -1)
            self._e = np.ascontiguousarray(np.broadcast_to(e, w.shape)).reshape(1, -1)
        self._first = np.asarray(scales, np.float32).reshape(*self._w.shape[:-1], -1)

    def scales(self, parameters: F32) -> F32:
        """Parameters in the shape that the format has them."""
        return np.ascontiguousarray(parameters, np.float32).reshape(self._shape)

    def best(self, levels: Array) -> tuple[Array, F32]:
        """The best that is found; levels: those of the format's own rounding."""
        made, parameters = levels.reshape(self._w.shape), self._first
        error = self._error(made, parameters)
        for start in STARTS:
            tried = self._first.copy()
            tried[..., 0] *= start
            made, parameters, error = self._refitted(made, parameters, error, tried, REFITS)
        made, parameters, error = self._refitted(made, parameters, error, parameters, LAST_REFITS)
        return made, parameters

    def _refitted(
        self, made: Array, parameters: F32, error: Array, tried: F32, times: int
    ) -> tuple[Array, F32, Array]:
        """The better of what there is and what comes of `tried`, for each group."""
        tried = self._held(tried)
        levels = self._nearest(tried)
        for _ in range(times):
            tried = self._held(self._fitted(levels, tried))
            levels = self._nearest(tried)
        found = self._error(levels, tried)
        better = (found < error)[..., None]
        return (
            np.where(better, levels, made),
            np.where(better, tried, parameters),
            np.minimum(found, error),
        )

    def _real(self, levels: Array, parameters: F32) -> F32:
        real = levels * (parameters[..., :1] * np.float32(self._format.value))
        return np.asarray(real + parameters[..., 1:] if self._minima else real, np.float32)

    def _error(self, levels: Array, parameters: F32) -> Array:
        with np.errstate(over="ignore"):
            apart = np.square(self._real(levels, parameters) - self._w)
            return np.asarray((apart * self._e).sum(axis=-1, dtype=np.float64))

    def _nearest(self, parameters: F32) -> Array:
        inverse = inverse_or_zero(parameters[..., :1] * np.float32(self._format.value))
        with np.errstate(over="ignore", invalid="ignore"):
            above = self._w - parameters[..., 1:] if self._minima else self._w
            return _nearest(self._codebook, np.nan_to_num(above * inverse))

    def _fitted(self, levels: Array, parameters: F32) -> F32:
        """The parameters of least squares for given levels; those there are where none is."""
        q = levels.astype(np.float32) * np.float32(self._format.value)
        weight = np.broadcast_to(self._e, q.shape)
        qq, qw = (_sum(weight * q * other) for other in (q, self._w))
        if not self._minima:
            with np.errstate(divide="ignore", invalid="ignore"):
                made = np.where(qq > 0, qw / qq, parameters[..., 0])
            return np.asarray(made[..., None], np.float32)
        one, of_q, of_w = _sum(weight), _sum(weight * q), _sum(weight * self._w)
        below = one * qq - of_q * of_q
        with np.errstate(divide="ignore", invalid="ignore"):
            d = np.where(below > 0, (one * qw - of_q * of_w) / below, parameters[..., 0])
            m = np.where(one > 0, (of_w - d * of_q) / one, parameters[..., 1])
        return np.asarray(np.stack([d, m], axis=-1), np.float32)

    def _held(self, parameters: F32) -> F32:
        """Parameters as the format holds them; what it could not hold stays as it was found."""
        scales = self._format.scales
        if not isinstance(scales, GroupScales):
            return np.where(np.isfinite(parameters), parameters, self._first)
        with np.errstate(divide="ignore", invalid="ignore"):
            near = scales.number.nearest(parameters)
        held, fits = scales.number.held(np.where(np.isfinite(near), near, 0).astype(np.float32))
        return np.where(fits & np.isfinite(near), held, self._first)


def _sum(values: F32) -> Array:
    return np.asarray(values.sum(axis=-1, dtype=np.float64))


def _nearest(codebook: Codebook, ratios: F32) -> Array:
    """The nearest levels; faster than `Codebook.nearest` where these are evenly spaced."""
    if not codebook.is_even:
        return codebook.nearest(ratios.astype(np.float64))
    low, step = np.float32(codebook.low), np.float32(codebook.step)
    places = np.rint((np.clip(ratios, codebook.low, codebook.high) - low) / step)
    return np.asarray(places * step + low).astype(codebook.dtype)


def _super_blocks(format: KQuant, w: F32, e: F32, levels: Array, scales: F32) -> tuple[Array, F32]:
    """The better of a super-block's own rounding and of those that weigh by e, for each of them."""
    M, K = w.shape
    block = format.scales.block
    blocks = w.reshape(-1, block)
    weight = np.ascontiguousarray(np.broadcast_to(e, w.shape)).reshape(blocks.shape)
    best, found = levels.reshape(blocks.shape), scales.reshape(len(blocks), *scales.shape[2:])
    error = _block_error(format, blocks, weight, best, found)
    for made, parts in format.weighted_blocks(blocks, weight):
        less = _block_error(format, blocks, weight, made, parts)
        better = less < error
        best = np.where(better[:, None], made, best)
        found = np.where(better.reshape(-1, *[1] * (found.ndim - 1)), parts, found)
        error = np.minimum(less, error)
    return best.reshape(M, K), np.asarray(found, np.float32).reshape(scales.shape)


def _block_error(format: KQuant, blocks: F32, weight: F32, levels: Array, scales: F32) -> Array:
    shaped = scales.reshape(format.scales.shape(*blocks.shape))
    real = format.scales.weights(levels, shaped, format.value)
    with np.errstate(over="ignore"):
        return _sum(np.square(real - blocks) * weight)
