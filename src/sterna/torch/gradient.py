"""The gradient of a product's input, `grad_y W` with packed W, in floats or in integers.

grad: float32 [n, M], the gradient of y; codes, scale: tensors of W, [M, K], in a format f. The
result is float32 [n, K].
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from sterna import formats, ops
from sterna.formats import Format, PackedWeight
from sterna.runtime import Threads
from sterna.torch.tensors import packed_weight

__all__ = ["of_floats", "of_integers"]

_CHUNK_BYTES = 4 << 20  # bytes of weights that are unpacked at a time
_MOST_ROWS = 1 << 16  # rows of W that one integer product sums over
_TURNED = ("i2", "i4", "i8")  # formats of W^T: the first that holds W's levels


def of_floats(
    grad: Tensor,
    codes: Tensor,
    scale: Tensor,
    f: Format,
    K: int,
    threads: Threads,
    dtype: torch.dtype,
) -> Tensor:
    """Multiply with torch, a few tiles of W at a time.

    dtype: that of y. Products are in float32. If dtype is bfloat16 and rows have one scale each,
    they are as in torch's own layers of that dtype: grad times the scales is rounded to 8 bits,
    levels are exact, and sums are wide.
    """
    out = torch.zeros(grad.shape[0], K, dtype=torch.float32)
    by_rows = f.codebook is not None and not f.scales.group
    dtype = dtype if by_rows and dtype == torch.bfloat16 else torch.float32
    for rows, part in _parts(codes, scale, f, grad.shape[1], K, dtype.itemsize):
        if by_rows:
            levels, _ = ops.unpack(part, threads=threads)
            factor = grad[:, rows] * _real_scales(part)
        else:
            levels, factor = ops.dequantize(part, threads=threads), grad[:, rows]
        weights = torch.from_numpy(levels).to(dtype)  # a level is exact in 8 bits
        if dtype == torch.float32:
            out.addmm_(factor, weights)
        else:
            out += factor.to(dtype) @ weights
    return out


def of_integers(
    grad: Tensor, codes: Tensor, scale: Tensor, f: Format, K: int, threads: Threads
) -> Tensor:
    """Multiply with Sterna's kernels: the same bits on every CPU.

    grad times the scales is rounded as activations are, to max / 127 of each token (of each 65,536
    rows of W), where rows have different ones. W^T is kept for the next time, in a format of its
    levels.
    """
    M = grad.shape[1]
    if not M:
        return torch.zeros(grad.shape[0], K)
    scales = _real_scales(packed_weight(codes, scale, str(f), M, K))
    # One scale of all rows changes no rounding, so that it may come last, where there is less.
    common = scales[0] if bool((scales == scales[0]).all()) else None
    if common is None:
        grad = grad * scales
    parts = [
        torch.from_numpy(ops.linear(grad[:, rows].numpy(), turned, threads=threads))
        for rows, turned in _transposed(codes, scale, f, M, K, threads)
    ]
    out = parts[0]
    for part in parts[1:]:
        out += part
    return out if common is None else out.mul_(common)


def _parts(
    codes: Tensor, scale: Tensor, f: Format, M: int, K: int, itemsize: int
) -> Iterator[tuple[slice, PackedWeight]]:
    """Yield the rows of a few tiles, whose weights take _CHUNK_BYTES, and the weights."""
    tiles = max(1, _CHUNK_BYTES // max(1, itemsize * f.tile_rows * K))
    for first in range(0, codes.shape[0], tiles):
        last = first + tiles
        rows = slice(first * f.tile_rows, min(M, last * f.tile_rows))
        # Scales lie in lines of tiles, or one for each of their rows.
        of_tiles = slice(first, last) if f.scales.group else slice(rows.start, last * f.tile_rows)
        M_part = rows.stop - rows.start
        yield rows, packed_weight(codes[first:last], scale[of_tiles], str(f), M_part, K)


def _real_scales(weight: PackedWeight) -> Tensor:
    """Return the factors of levels, for rows with one scale each."""
    scales = np.broadcast_to(weight.scales * np.float32(weight.format.value), (weight.M,))
    return torch.from_numpy(np.array(scales))


class _TransposedWeight(NamedTuple):
    """W^T, in parts of the rows of W that one integer product sums over."""

    version: int  # of the codes: they may be written to
    parts: list[tuple[slice, PackedWeight]]


# By the codes that had a gradient of integers, until these go.
_kept: MutableMapping[Tensor, _TransposedWeight] = WeakTensorKeyDictionary()


def _transposed(
    codes: Tensor, scale: Tensor, f: Format, M: int, K: int, threads: Threads
) -> list[tuple[slice, PackedWeight]]:
    cached = _kept.get(codes)
    if cached is not None and cached.version == codes._version:
        return cached.parts
    levels = np.empty((K, M), np.int8)
    for rows, part in _parts(codes, scale, f, M, K, 4):  # codes become floats first
        levels[:, rows] = ops.unpack(part, threads=threads)[0].T
    low, high = int(levels.min(initial=0)), int(levels.max(initial=0))
    format = next(name for name in _TURNED if _holds(name, low, high))
    parts = [
        (rows, ops.pack(np.ascontiguousarray(levels[:, rows]), format=format, threads=threads))
        for rows in (slice(i, min(i + _MOST_ROWS, M)) for i in range(0, M, _MOST_ROWS))
    ]
    _kept[codes] = _TransposedWeight(codes._version, parts)
    return parts


def _holds(format: str, low: int, high: int) -> bool:
    codebook = formats.get(format).codebook
    return codebook is not None and codebook.ends[0] <= low and high <= codebook.ends[1]
