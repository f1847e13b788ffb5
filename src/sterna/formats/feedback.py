"""Rounding with error feedback: later columns make up for the errors of earlier ones.

A layer's output moves by (w - ŵ)^T x, over a text by (w - ŵ)^T H (w - ŵ) in the mean square, with
H = E[x x^T]. Columns are rounded one after the other, and the error of each moves the weights of
the columns that follow, as GPTQ (arXiv 2210.17323) and LDLQ (arXiv 2307.13304, which are the same)
do. With H = U D U^T, U upper triangular with a diagonal of 1, the error is

    Σ_j D_j (w'_j - ŵ_j)²,  w'_j = w_j + Σ_{i<j} (w_i - ŵ_i) U_ij

D_j is the variance of x_j that later ones do not explain. Scales are searched with D_j as
weights of errors, on the moved weights of their block, and then stay.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sterna.formats import search
from sterna.formats.arithmetic import F32, inverse_or_zero
from sterna.formats.base import Format
from sterna.formats.scales.within_rows import BlockScales

__all__ = ["DAMPING", "Feedback", "can_feed", "rounded"]

Levels = npt.NDArray[np.int8]
#: Of columns [M, n] and weights of their errors [n]: levels [M, n] and scales of their layout.
BlockRounding = Callable[[F32, F32], tuple[Levels, F32]]

#: A part of the mean variance that every column gets, as in GPTQ: channels that the text did not
#: use still matter, and H has an inverse.
DAMPING = 0.01
SPAN = 128  # columns whose errors move those behind the span at once
FACTORED = 2048  # columns of H that are factored together


@dataclass(frozen=True, eq=False)
class Feedback:
    """What a layer's inputs say about the errors of its columns.

    variances: D, float32 [K]. factor: U, float32 [K, K]: row i says by how much an error of column
    i moves the weights of later columns. squares: the diagonal of H, float32 [K].
    """

    variances: F32
    factor: F32
    squares: F32

    @classmethod
    def of(
        cls,
        moments: npt.NDArray[np.float64] | F32,
        damping: float = DAMPING,
        rows: int | None = None,
    ) -> Feedback:
        """Make it of second moments E[x x^T], [K, K].

        damping: a part of their mean diagonal, which is added to the diagonal. rows: of how many x
        the moments are the mean, None: enough. What few rows say of two columns together holds for
        other texts in part only, so products of different columns shrink to N / (N + K).
        """
        h = np.array(moments[::-1, ::-1], np.float64)  # backwards, lower becomes upper
        at = np.diag_indices_from(h)
        if rows is not None:
            diagonal = h[at]
            h *= rows / (rows + len(h))
            h[at] = diagonal
        mean = float(np.mean(h[at]))
        h[at] += damping * mean if mean > 0 else 1.0
        squares = np.asarray(h[at][::-1], np.float32)
        _to_lower(h)
        diagonal, upper = h[at][::-1], h[::-1, ::-1]
        factor = np.empty(h.shape, np.float32)
        for begin in range(0, len(h), SPAN):
            factor[begin : begin + SPAN] = upper[begin : begin + SPAN] / diagonal
        return cls(np.asarray(np.square(diagonal), np.float32), factor, squares)

    def error(self, apart: F32) -> npt.NDArray[np.float64]:
        """Return d H d^T of each row d of differences of weights, float32 [M, K] -> [M]."""
        moved = np.square(apart @ self.factor) @ self.variances
        return np.asarray(moved, np.float64)


def _to_lower(h: npt.NDArray[np.float64]) -> None:
    """Replace h [K, K] by L of h = L L^T in place, some columns at a time.

    `np.linalg.cholesky` of all has three matrices at a time: five gigabytes for 14,336 columns.
    """
    for begin in range(0, len(h), FACTORED):
        end = min(begin + FACTORED, len(h))
        before, here, behind = slice(begin), slice(begin, end), slice(end, None)
        if begin:
            h[begin:, here] -= h[begin:, before] @ h[here, before].T
        h[here, here] = np.linalg.cholesky(h[here, here])
        if end < len(h):
            h[behind, here] = np.linalg.solve(h[here, here], h[behind, here].T).T
            h[here, behind] = 0


def can_feed(format: Format) -> bool:
    """Whether each weight of a format is a level of its own, on a grid that its block's scales
    make."""
    book, scales = format.codebook, format.scales
    own = isinstance(scales, BlockScales) and scales.default == "group"
    return book is not None and own and not format.of_files


def rounded(format: Format, w: F32, feedback: Feedback, block: BlockRounding) -> tuple[Levels, F32]:
    """Round rows float32 [M, K] -> (levels int8 [M, K], scales as their layout has them).

    block: finds levels and scales of columns [M, n], with weights of their errors float32 [n].
    """
    scales, book = format.scales, format.codebook
    assert isinstance(scales, BlockScales)
    assert book is not None
    M, K = w.shape
    size = scales.block
    span = max(SPAN // size, 1) * size
    columns = np.ascontiguousarray(w.T)  # [K, M]: a column is a line
    levels, made = np.empty((K, M), np.int8), list[F32]()
    nearest, value = search.Nearest(book), np.float32(format.value)
    for begin in range(0, K, span):
        end = min(begin + span, K)
        errors = np.empty((end - begin, M), np.float32)
        for first in range(begin, end, size):
            of_block = np.ascontiguousarray(columns[first : first + size].T)
            variances = feedback.variances[first : first + size]
            _, found = block(of_block, variances)
            made.append(found)
            of_groups = scales.group_values(found, M, size)  # [M, groups, 1 or 2]
            for at in range(0, size, scales.group):
                pair = of_groups[:, at // scales.group]
                d = pair[:, 0] * value
                m = pair[:, 1] if scales.minima else np.float32(0)
                inverse = inverse_or_zero(d)
                for j in range(first + at, first + at + scales.group):
                    level = nearest((columns[j] - m) * inverse)
                    levels[j] = level
                    error = w[:, j] - (level * d + m)
                    errors[j - begin] = error
                    if j + 1 < end:
                        columns[j + 1 : end] += feedback.factor[j, j + 1 : end, None] * error
        if end < K:
            columns[end:] += feedback.factor[begin:end, end:].T @ errors
    return np.ascontiguousarray(levels.T), np.concatenate(made, axis=1)
