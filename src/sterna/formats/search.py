"""A search for the scales of least error for groups of weights.

A group's weights w_k become level_k * d, or level_k * d + m. For given levels, least squares gives
the best d and m; for given d and m, the nearest levels are best. The search tries several
beginnings and refines the best. Errors are weighted by e_k.

Weights are arrays [n, G]: a column is a group. Sums over n are then sums of whole lines, which
numpy adds one after the other on every machine; sums along a line it adds in an order of the CPU's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.codebook import Codebook

__all__ = [
    "NEAR",
    "STEPS_OF_TWO",
    "Few",
    "Nearest",
    "Weighted",
    "by_size",
    "fitted",
    "scale_and_minimum",
    "scales",
    "total",
]

Array = npt.NDArray[Any]
#: Places of a group's largest weight to try, as multiples of the last level of its side. Below 1,
#: all levels of a matrix that was rounded before may be found again; above 1 the largest is cut.
NEAR = (0.625, 0.75, 0.875, 0.94, 1.0, 1.06, 1.125, 1.19, 1.25, 1.375)
FAR = (*NEAR, 1.5, 1.7, 2.0, 2.4, 3.0)  # of long groups, and of few levels
LONG, FEW = 256, 5
STEPS_OF_TWO = (0.5, 1.0, 2.0)  # of scales that are powers of two
#: Levels beyond either end that a group's ends are put at, and within the upper one.
CUT = (0.0, 0.25, 0.5, 0.8, 1.2)
INSET = (1, 2, 3)
REFITS = 3
PRECISE = 4096  # sums of more are of doubles


def total(values: Array) -> Array:
    """Sum values [n, G] line after line, to [G]."""
    if values.shape[1] == 1:  # numpy would sum it as one line
        return total(np.concatenate([values, values], axis=1))[:1]
    precise = len(values) > PRECISE or values.dtype == np.float64
    return np.asarray(values.sum(axis=0, dtype=np.float64 if precise else np.float32))


class Nearest:
    """The nearest levels of a codebook."""

    def __init__(self, codebook: Codebook) -> None:
        self._low, self._high = np.float32(codebook.low), np.float32(codebook.high)
        self._step = np.float32(codebook.step)
        self._of_halves: F32 | None = None
        if not codebook.is_even:
            self._of_halves = codebook.of_halves.astype(np.float32)

    def __call__(self, ratios: F32) -> F32:
        """float32 of any shape -> levels float32, of two the even one, or in a list the lower."""
        inside = np.clip(ratios, self._low, self._high)
        if self._of_halves is not None:
            at = np.ceil(inside + inside) - 2 * self._low
            return np.asarray(self._of_halves[at.astype(np.int16)])
        if self._step == 1:
            return np.asarray(np.rint(inside))
        return np.asarray(np.rint((inside - self._low) / self._step) * self._step + self._low)

    def sums(self, weighted: Weighted, d: F32, m: F32 | None = None) -> tuple[Array, Array, Array]:
        """Σ e x q, Σ e q² and Σ e q [G] for the levels q nearest to (x - m) / d, parameters [G]."""
        return _native.nearest_sums(
            weighted.x,
            weighted.ex,
            weighted.e,
            inverse_or_zero(d),
            m,
            float(self._low),
            float(self._high),
            float(self._step),
            self._of_halves,
            len(weighted.x) > PRECISE,
        )


def by_size(x: F32) -> F32:
    """Return the weights of errors of x [n, G] without a text: x² + its mean, float32 [n, G]."""
    squares = x * x
    squares += total(squares) / np.float32(len(x))
    return np.asarray(squares, np.float32)


class Weighted:
    """Weights x [n, G], weights of their errors e [n, G] or [n, 1], and ex = e x [n, G]."""

    def __init__(self, x: F32, e: F32) -> None:
        self.x = x
        self.e = e
        self.ex: F32 = x * e

    def totals(self) -> tuple[Array, Array]:
        """Σ e and Σ e x [G]."""
        return total(np.broadcast_to(self.e, self.x.shape)), total(self.ex)


class _Best:
    """The best parameters so far for each group, by the largest gain."""

    def __init__(self, *parameters: F32) -> None:
        self.parameters = parameters
        self._gain = np.zeros(len(parameters[0]), np.float64)

    def offer(self, gain: Array, *parameters: Array) -> None:
        better = gain > self._gain
        self._gain = np.where(better, gain, self._gain)
        pairs = zip(parameters, self.parameters, strict=True)
        self.parameters = tuple(
            np.asarray(np.where(better, new, old), np.float32) for new, old in pairs
        )


class Few(NamedTuple):
    """Scales of which there are few: which of them a number becomes, and places to try."""

    rounded: Callable[[F32], F32]
    factors: Sequence[float]


def scales(weighted: Weighted, codebook: Codebook, first: F32, few: Few | None = None) -> F32:
    """Choose a scale for each group [G], so that a weight is level * scale.

    first: a scale to try, too. few: None if a scale may be nearly any number.
    """
    nearest, best = Nearest(codebook), _Best(first)
    x = weighted.x
    largest = np.take_along_axis(x, np.abs(x).argmax(axis=0)[None], 0)[0]
    # The largest weight goes to the last level that is farthest from zero, with either sign; in a
    # list of levels that has no mirror, to the other last one as well.
    ends = sorted({codebook.low, codebook.high}, key=abs)[codebook.is_even :]
    if codebook.is_mirrored:
        largest, ends = np.abs(largest), [codebook.high]

    def offer(tried: F32) -> None:
        d = tried if few is None else few.rounded(tried)
        xq, qq, _ = nearest.sums(weighted, d)
        if few is None:
            d = _ratio(xq, qq)
        best.offer(d * (2 * xq - d * qq), d)

    offer(first)
    far = len(x) > LONG or len(codebook.levels) <= FEW
    factors = few.factors if few is not None else FAR if far else NEAR
    for end in ends:
        for factor in factors:
            offer(largest / np.float32(end * factor))
    for _ in range(REFITS if few is None else 0):
        offer(best.parameters[0])
    return best.parameters[0]


def scale_and_minimum(
    weighted: Weighted, codebook: Codebook, first: tuple[F32, F32], below_zero: bool = False
) -> tuple[F32, F32]:
    """Choose (d, m) [G], so that a weight is level * d + m, of levels 0 … n.

    first: d and m to try, too. below_zero: m is 0 at most.
    """
    x, top = weighted.x, np.float32(codebook.high)
    nearest, best, totals = Nearest(codebook), _Best(*first), weighted.totals()
    low, high = x.min(axis=0), x.max(axis=0)
    if below_zero:
        low = np.minimum(low, np.float32(0))

    def offer(d: F32, m: F32) -> None:
        d, m, gain = _line(*totals, *nearest.sums(weighted, d, m), below_zero=below_zero)
        best.offer(np.where(d > 0, gain, 0), d, m)

    offer(*first)
    for cut in CUT:
        d = (high - low) / np.float32(top + 2 * cut)
        offer(d, low + np.float32(cut) * d)
    for inset in INSET if codebook.high > FEW else ():
        offer((high - low) / (top - np.float32(inset)), low)
    for _ in range(REFITS):
        offer(*best.parameters)
    return best.parameters[0], best.parameters[1]


def fitted(weighted: Weighted, codebook: Codebook, d: F32) -> F32:
    """Return the scale of least squares for the levels nearest to x / d [G]; d if all are 0."""
    xq, qq, _ = Nearest(codebook).sums(weighted, d)
    return np.asarray(np.where(qq > 0, _ratio(xq, qq), d), np.float32)


def _line(*sums: Array, below_zero: bool) -> tuple[F32, F32, Array]:
    """Fit the line d q + m of least squares; also return the reduction of Σ e x².

    sums: Σ e, Σ e x, Σ e x q, Σ e q² and Σ e q [G].
    """
    e, ex, xq, qq, eq = (part.astype(np.float64) for part in sums)
    d = _ratio(e * xq - ex * eq, e * qq - eq * eq)
    m = _ratio(ex - d * eq, e)
    if below_zero:
        above = m > 0
        d, m = np.where(above, _ratio(xq, qq), d), np.where(above, 0, m)
    d, m = np.asarray(d, np.float32), np.asarray(m, np.float32)
    gain = (
        2 * d * xq + 2 * m * ex - d * d * qq - 2 * d * m * eq - np.square(m, dtype=np.float64) * e
    )
    return d, m, gain


def _ratio(a: Array, b: Array) -> Array:
    """a / b where b is positive, else 0."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.asarray(np.where(b > 0, a / b, 0), a.dtype)
