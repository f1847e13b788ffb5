"""Tables of levels for given weights: Lloyd's algorithm with a scale for each group.

Two steps take turns, from a format's own table on. Rounding (`weighted.rounded`) finds the scales
and levels of least weighted error. Then each level moves to the mean of its weights, over their
scales,

    L_c = Σ e d w / Σ e d²   over the weights w of code c, of scale d,

and the table is rounded to whole numbers, whose common factor the scales take. The best table of
all rounds is kept, so that none is worse than the first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.formats import search, weighted
from sterna.formats.arithmetic import F32
from sterna.formats.base import Format
from sterna.formats.level_tables import Table, name_of, nearest_levels

__all__ = ["SAMPLE", "learned"]

SAMPLE = 1 << 18  # weights of a matrix that tell its table
ROUNDS, FINEST = 8, 16
TINY = 1e-30  # in place of 0


def learned(format: Table, w: F32, squares: F32 | None = None, threads: int = 1) -> Format:
    """Return the format of the table that fits weights float32 [M, K], with `format`'s scales.

    K must be whole groups. squares: E[x_k²] of the layer's inputs, float32 [K]. The bits depend on
    neither machine nor threads.
    """
    e = _weights_of_errors(w, squares, format.scales.group or w.shape[1])

    @cache
    def tried(of: Format) -> tuple[npt.NDArray[Any], F32, float]:
        levels, scales = weighted.rounded(of, w, squares=squares, threads=threads)
        d = _of_weights(scales, w)
        return levels, d, float(np.sum(e * np.square(levels * d - w, dtype=np.float64)))

    best: Format = format
    fine = _with_table(format, format.table, FINEST)  # four levels move on the grid of int8, too
    for _ in range(ROUNDS):
        levels, d, _ = tried(fine)
        means = _means(fine, levels, d, e, w)
        if not means.any():
            break
        made = _with_table(format, means, len(format.table))
        if tried(made)[2] < tried(best)[2]:
            best = made
        before, fine = fine, _with_table(format, means, FINEST)
        if fine == before:
            break
    return best


def _of_weights(scales: F32, w: F32) -> F32:
    """Return the scale of each weight [M, K]."""
    if scales.ndim < 2:
        return np.broadcast_to(scales if scales.ndim == 0 else scales[:, None], w.shape)
    return np.repeat(scales, w.shape[1] // scales.shape[1], axis=1)


def _weights_of_errors(w: F32, squares: F32 | None, group: int) -> npt.NDArray[Any]:
    """Return the e of rounding: of the inputs, or of `search.by_size`, with a mean of 1 in a group.

    Without a mean that is the same, groups of large weights alone would make the table (SmolLM2, KL
    of nf4: 0.249 in place of 0.232).
    """
    if squares is not None:
        return np.broadcast_to(squares + np.float32(weighted.DAMPING) * squares.mean(), w.shape)
    e = search.by_size(np.ascontiguousarray(w.reshape(-1, group).T))
    e /= np.maximum(search.total(e) / np.float32(group), np.float32(TINY))
    return np.ascontiguousarray(e.T).reshape(w.shape)


def _means(
    tried: Format, levels: npt.NDArray[Any], d: F32, e: npt.NDArray[Any], w: F32
) -> npt.NDArray[np.float64]:
    """Return the mean of each level's weights over their scales; a level without any stays."""
    assert tried.codebook is not None
    known = tried.codebook.array
    code = np.searchsorted(known, levels).reshape(-1)
    above = np.bincount(code, (e * d * w).reshape(-1).astype(np.float64), len(known))
    below = np.bincount(code, (e * d * d).reshape(-1).astype(np.float64), len(known))
    return np.divide(above, below, out=known.astype(np.float64), where=below > 0)


def _with_table(format: Table, values: npt.ArrayLike, count: int) -> Format:
    """Return `format` with a table of `count` levels near to real ones, of which the last repeats
    if they are fewer."""
    real = np.sort(np.asarray(values, np.float64))
    table = nearest_levels([*real, *[real[-1]] * (count - len(real))])[0]
    group = format.scales.group
    return formats.get(f"{name_of(table)}:{f'g{group}' if group else format.scales.default}")
