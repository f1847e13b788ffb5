"""A format for each matrix, so that all take at most some bytes and lose the least.

Each matrix has choices of (bytes, loss), and losses add up. For a price λ of a byte, each takes the
choice of least loss + λ bytes; a bisection finds the price whose bytes just fit. What is left of
the bytes buys the better choices with the most gain for a byte that still fit. So the sum of losses
is above the least one by at most what the last bytes would have bought (H. Everett, "Generalized
Lagrange multiplier method", Operations Research 1963).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

__all__ = ["Choice", "allocate", "curve", "least_bytes"]

STEPS = 100  # of the bisection: the price is then exact to its last bit


class Choice(NamedTuple):
    """One way to store a matrix."""

    format: str
    nbytes: int
    loss: float


def least_bytes(choices: Sequence[Sequence[Choice]]) -> int:
    """Return the bytes of all matrices in their smallest forms."""
    return sum(min(one.nbytes for one in of_matrix) for of_matrix in choices)


def allocate(choices: Sequence[Sequence[Choice]], nbytes: int) -> list[Choice]:
    """Choose for each matrix; all together take at most `nbytes`, which `least_bytes` must fit."""
    if least_bytes(choices) > nbytes:
        raise ValueError("nbytes: must be at least least_bytes")
    high = 1.0
    while _total(at_price(choices, high)) > nbytes:
        high *= 4
        if high > 1e300:  # losses are equal, or overflow
            return _filled([_smallest(of_matrix) for of_matrix in choices], choices, nbytes)
    low = 0.0
    if _total(free := at_price(choices, 0.0)) <= nbytes:
        return free
    for _ in range(STEPS):
        middle = (low + high) / 2
        if _total(at_price(choices, middle)) > nbytes:
            low = middle
        else:
            high = middle
    return _filled(at_price(choices, high), choices, nbytes)


def curve(choices: Sequence[Sequence[Choice]]) -> Iterator[tuple[int, float]]:
    """Yield (bytes, loss) of the best choices for prices from the highest to the lowest."""
    prices = set[float]()
    for of_matrix in choices:
        hull = _hull(of_matrix)
        for small, large in pairwise(hull):
            prices.add((small.loss - large.loss) / (large.nbytes - small.nbytes))
    ordered = sorted(prices, reverse=True)
    step = max(1, len(ordered) // 200)
    last = -1
    for price in [*ordered[::step], 0.0]:
        chosen = at_price(choices, price)
        if (total := _total(chosen)) != last:
            last = total
            yield total, sum(one.loss for one in chosen)


def at_price(choices: Sequence[Sequence[Choice]], price: float) -> list[Choice]:
    """Choose for each matrix the least loss + price * bytes, of equal ones the smallest."""
    return [min(one, key=lambda c: (c.loss + price * c.nbytes, c.nbytes)) for one in choices]


def _total(chosen: Sequence[Choice]) -> int:
    return sum(one.nbytes for one in chosen)


def _smallest(of_matrix: Sequence[Choice]) -> Choice:
    return min(of_matrix, key=lambda c: (c.nbytes, c.loss))


def _hull(of_matrix: Sequence[Choice]) -> list[Choice]:
    """Return the choices that some price takes, from the smallest on."""
    hull: list[Choice] = []
    for one in sorted(of_matrix, key=lambda c: (c.nbytes, c.loss)):
        if hull and one.loss >= hull[-1].loss:
            continue
        while len(hull) > 1 and _gain(hull[-2], hull[-1]) <= _gain(hull[-1], one):
            hull.pop()
        hull.append(one)
    return hull


def _gain(small: Choice, large: Choice) -> float:
    return (small.loss - large.loss) / (large.nbytes - small.nbytes)


def _filled(chosen: list[Choice], choices: Sequence[Sequence[Choice]], nbytes: int) -> list[Choice]:
    """Take better choices for bytes that are left, those of the most gain for a byte first."""
    left = nbytes - _total(chosen)
    while True:
        better = [
            (_gain(now, one), i, one)
            for i, (now, of_matrix) in enumerate(zip(chosen, choices, strict=True))
            for one in of_matrix
            if one.loss < now.loss and now.nbytes < one.nbytes <= now.nbytes + left
        ]
        if not better:
            return chosen
        _, i, best = max(better)
        left -= best.nbytes - chosen[i].nbytes
        chosen[i] = best
