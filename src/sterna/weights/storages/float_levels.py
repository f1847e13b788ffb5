"""Dequantised files: floats that are levels times a scale, recognised by their values.

    a row's values                                what it is read as
    -s, 0, s                                      ternary, a scale for each row
    -s, s                                         binary
    -3s, -s, s, 3s                                four levels (ParetoQ, 2 bits)
    -s, 0, s, with another s for each block of k  ternary with scales in groups; binary without 0
    k s rounded to the dtype, k = +-1, +-3        four levels
    the same with -8 <= k <= 7                    sixteen levels (ParetoQ, 3 and 4 bits)

Such files are

- Bonsai's "unpacked" ones, with groups of 128, also in the embedding and head;
- TriLM *_Unpacked: training split a matrix over devices, and each part has its own scale, so that
  scales for rows or for groups of k suffice;
- Falcon-E's bf16 revision, and MobileLLM-ParetoQ's published files.

Weights keep their bits: if the dtype has rounded k s, rounding k s again gives the file's bits. If
a single value does not fit, the whole matrix stays floats.

Activations are rounded to int8, as for all of Sterna's integer formats, unless the user asks for a
float format.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.weights.storages.base import (
    BINARY,
    F32,
    FLOATS,
    FOUR,
    SIXTEEN,
    TERNARY,
    Floats,
    Layer,
    Levels,
)

MAX_SIZES = 8  # magnitudes of a row except 0: those of levels -8..7, or one for each of 8 blocks
SAMPLE = 8  # rows to look at before the whole matrix
MIN_K = 32  # shorter rows may have few values by chance
BAND = 64  # rows to look at together
GROUP_K = 32  # groups of k are multiples of this
GROUPS = (256, 128, 64, 32)  # k of a group, for rows with more than MAX_SIZES magnitudes
Sizes = npt.NDArray[Any]  # magnitudes as unsigned bits, which have the same order


def recognises(layer: Layer) -> bool:
    """Whether rows have few values each; a sample suffices, since a float model's have many."""
    return layer.dtype in FLOATS and _few_values(layer.weight)


def read(layer: Layer) -> Levels | Floats:
    """Read the levels, or the floats if some of them are no levels."""
    return _levels_of(layer.weight)


def ternary_table(rows: Floats) -> Levels | Floats:
    """Turn an embedding or head [M, K] into levels if it is ternary or binary."""
    read = _levels_of(rows) if _few_values(rows) else rows
    return read if isinstance(read, Levels) and read.kinds in (TERNARY, BINARY) else rows


def _few_values(stored: Floats) -> bool:
    """Whether some rows, or groups of k in them, have few values each."""
    M, K = stored.bits.shape
    if M == 0 or K < MIN_K:
        return False
    magnitudes = _magnitudes(stored, np.linspace(0, M - 1, SAMPLE).astype(int))
    return _row_sizes(magnitudes) is not None or _group_of(magnitudes) is not None


def _levels_of(stored: Floats) -> Levels | Floats:
    magnitudes = _magnitudes(stored)
    sizes = _row_sizes(magnitudes)
    if sizes is None:
        return _in_groups(stored, magnitudes) or stored
    kinds, multiples, scale = _rule(magnitudes, sizes, stored.format)
    if not kinds:
        return _in_groups(stored, magnitudes) or stored
    if scale.ndim == 2:
        return _ternary(stored, magnitudes, scale)
    levels = _signed(stored, magnitudes, sizes, multiples)
    if levels.max(initial=0) > kinds[-1]:  # 8 s: levels go from -8 to 7
        return stored
    return Levels(kinds, levels, scale, lambda: stored)


def _magnitudes(stored: Floats, rows: npt.NDArray[Any] | slice = slice(None)) -> Sizes:
    """Return |w| of some rows as bits."""
    bits = stored.bits[rows]
    whole = bits.view(formats.float_format(stored.format).bits_type)
    return np.asarray(whole & (np.iinfo(whole.dtype).max >> 1))


def _bands(rows: int) -> Iterator[slice]:
    """Yield bands of rows that stay in a core's cache."""
    for first in range(0, rows, BAND):
        yield slice(first, first + BAND)


def _row_sizes(magnitudes: Sizes) -> Sizes | None:
    """List each row's magnitudes [M, n], largest first, padded with 0; None for more than 8."""
    table = np.zeros((len(magnitudes), MAX_SIZES), magnitudes.dtype)
    count = 1
    for band in _bands(len(magnitudes)):
        left, j = magnitudes[band], 0
        while (largest := left.max(axis=1)).any():
            if j == MAX_SIZES:
                return None
            table[band, j] = largest
            left = left * (left < largest[:, None])  # three times as fast as np.where
            j += 1
        count = max(count, j)
    return table[:, :count]


def _rule(
    magnitudes: Sizes, sizes: Sizes, format: str
) -> tuple[tuple[int, ...], npt.NDArray[np.int8], F32]:
    """Return (possible levels, level of each of `sizes`, scale); no levels if none fit."""
    real = _real(sizes, format)
    count = sizes.shape[1]
    ones = (sizes > 0).astype(np.int8)
    zeros = not magnitudes.all()
    if count == 1:
        return (TERNARY if zeros else BINARY), ones, real[:, 0]
    if count == 2 and not zeros:
        high, low = real[:, 0], np.where(ones[:, 1] == 1, real[:, 1], real[:, 0])
        if ((high == 3 * low) | (high == low)).all():
            threes = ones.copy()
            threes[:, 0] = np.where(high == low, 1, 3)
            return FOUR, threes, low
    scale = _block_scales(magnitudes, format)
    if scale is not None:
        return TERNARY, ones, scale
    multiples, row_scale = _common_scale(sizes, format)
    odd = not zeros and np.isin(multiples, (0, 1, 3)).all()
    kinds = FOUR if odd else SIXTEEN
    scaled = ((row_scale > 0) | (real[:, 0] == 0)).all()
    return (kinds if scaled else ()), multiples, row_scale


def _block_scales(magnitudes: Sizes, format: str) -> F32 | None:
    """Find scales [M, blocks] of rows that are ternary in each of 2 to 8 blocks; None if not."""
    K = magnitudes.shape[1]
    for blocks in range(2, MAX_SIZES + 1):
        if K % (blocks * GROUP_K):
            continue
        largest = _largest(magnitudes, K // blocks)
        if largest is not None:
            return _f16_scales(largest, format)
    return None


def _in_groups(stored: Floats, magnitudes: Sizes) -> Levels | None:
    """Read rows that are ternary in each group of k; None if they are not."""
    group = _group_of(magnitudes[np.linspace(0, len(magnitudes) - 1, SAMPLE).astype(int)])
    largest = None if group is None else _largest(magnitudes, group)
    scale = None if largest is None else _f16_scales(largest, stored.format)
    return None if scale is None else _ternary(stored, magnitudes, scale)


def _group_of(magnitudes: Sizes) -> int | None:
    """Return the largest group of k in which all rows are ternary; None if there is none."""
    K = magnitudes.shape[1]
    return next((g for g in GROUPS if K % g == 0 and _largest(magnitudes, g) is not None), None)


def _largest(magnitudes: Sizes, group: int) -> Sizes | None:
    """Return each group's magnitude [M, groups] other than 0; None if a group has several."""
    M, K = magnitudes.shape
    out = np.empty((M, K // group), magnitudes.dtype)
    for band in _bands(M):
        parts = magnitudes[band].reshape(-1, K // group, group)
        out[band] = parts.max(axis=2)
        if not ((parts == 0) | (parts == out[band][:, :, None])).all():
            return None
    return out


def _f16_scales(largest: Sizes, format: str) -> F32 | None:
    """Turn magnitudes into scales; None if an f16 does not hold one of them."""
    scale = _real(largest, format)
    with np.errstate(over="ignore"):
        exact = scale.astype(np.float16) == scale
    return scale if exact.all() else None


def _ternary(stored: Floats, magnitudes: Sizes, scale: F32) -> Levels:
    """Take the signs of values as levels; scale [M, groups]."""
    bits = stored.bits.view(magnitudes.dtype)
    levels = np.empty(magnitudes.shape, np.int8)
    for band in _bands(len(levels)):
        sign = 1 - 2 * (bits[band] != magnitudes[band]).view(np.int8)
        np.multiply(magnitudes[band] != 0, sign, out=levels[band])
    kinds = TERNARY if (levels == 0).any() else BINARY
    return Levels(kinds, levels, scale, lambda: stored)


def _common_scale(sizes: Sizes, format: str) -> tuple[npt.NDArray[np.int8], F32]:
    """Find k <= 8 and s with sizes [M, n] = k s rounded to the dtype; s = 0 for rows without."""
    real = _real(sizes, format)
    size = real.astype(np.float64)
    # Values that round to a size lie within half the distance to its two neighbours. The bits of
    # the neighbours are one less and one more.
    least_size = (size + _real(np.where(sizes > 0, sizes - 1, 0), format)) / 2
    most_size = (size + _real(sizes + 1, format)) / 2
    multiples = np.zeros(real.shape, np.int8)
    scale = np.zeros(len(real), np.float32)
    for top in range(1, 9):
        k = np.rint(size * (top / size[:, :1].clip(1e-300)))
        divisor = np.where(k > 0, k, 1)
        least = (least_size / divisor).max(axis=1, initial=0)
        most = np.where(size > 0, most_size / divisor, np.inf).min(axis=1)
        s = ((least + np.where(np.isfinite(most), most, 1)) / 2).astype(np.float32)
        good = (_rounded(k.astype(np.float32) * s[:, None], format) == real).all(axis=1)
        new = good & (scale == 0)
        multiples[new], scale[new] = k[new], s[new]
    return multiples, scale


def _signed(
    stored: Floats, magnitudes: Sizes, sizes: Sizes, multiples: npt.NDArray[np.int8]
) -> npt.NDArray[np.int8]:
    """Return the levels int8 [M, K] of the values."""
    bits = stored.bits.view(magnitudes.dtype)
    levels = np.zeros(magnitudes.shape, np.int8)
    for band in _bands(len(levels)):
        for j in range(sizes.shape[1]):
            levels[band] += (magnitudes[band] == sizes[band, j, None]) * multiples[band, j, None]
        negative = (bits[band] != magnitudes[band]).view(np.int8)
        levels[band] *= 1 - 2 * negative
    return levels


def _real(sizes: Sizes, format: str) -> F32:
    f = formats.float_format(format)
    return f.floats(sizes.view(f.word))


def _rounded(values: F32, format: str) -> F32:
    """Round values to a dtype, and return them as float32."""
    f = formats.float_format(format)
    with np.errstate(over="ignore"):
        return f.floats(f.words(values))
