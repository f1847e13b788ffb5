"""Helpers for storages of integers times scales: words of several codes, and scales in groups."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.weights.storages.base import F32, SIXTEEN, TERNARY, Floats, Layer, Levels

__all__ = ["WORD_BITS", "group_index", "integers", "narrowest", "unpacked", "with_zeros"]

WORD_BITS = 32
Codes = npt.NDArray[np.uint8]


def unpacked(words: npt.NDArray[Any], bits: int, axis: int) -> Codes:
    """Unpack words of 32 bits [rows, columns] into codes along an axis, lowest bits first.

    bits: the size of a code: 2, 4 or 8.
    """
    count, plain = WORD_BITS // bits, np.ascontiguousarray(words).view(np.uint32)
    shape = list(plain.shape)
    shape[axis] *= count
    codes = np.empty(shape, np.uint8)
    for i in range(count):
        part = (plain >> np.uint32(bits * i) & np.uint32((1 << bits) - 1)).astype(np.uint8)
        codes[(slice(i, None, count), slice(None))[:: 1 if axis == 0 else -1]] = part
    return codes


def group_index(layer: Layer, suffix: str, groups: int) -> npt.NDArray[np.int64] | None:
    """Read the group of each k; None if groups are of neighbours, as without the tensor.

    Other orders come from desc_act and actorder, which round the k of large activations first.
    """
    if not layer.has(suffix):
        return None
    K = layer.part.K
    info = layer.checkpoint.require(f"{layer.part.name}.{suffix}", (K,), ("I32", "I64"))
    index = np.asarray(layer.checkpoint.read(info.name)).astype(np.int64)
    if np.array_equal(index, np.arange(K) // (K // groups)):
        return None
    if index.min() < 0 or index.max() >= groups:
        wrong = int(index.min()) if index.min() < 0 else int(index.max())
        layer.fail(suffix, f"groups in 0..{groups - 1}", wrong)
    return index


def with_zeros(
    layer: Layer,
    codes: npt.NDArray[np.uint8],
    zeros: npt.NDArray[np.int16],
    bits: int,
    index: npt.NDArray[np.int64] | None = None,
) -> tuple[range, npt.NDArray[np.int8]]:
    """Subtract zero points [groups, M] from codes [K, M]; index: as in `integers`.

    Returns the possible levels, and the levels [M, K].
    """
    middle = 1 << (bits - 1)
    of_k = np.repeat(zeros, len(codes) // len(zeros), axis=0) if index is None else zeros[index]
    levels = codes.astype(np.int16) - of_k
    kinds = range(-middle, middle)
    if not (zeros == middle).all():
        kinds = range(-128, 128) if bits == 8 else range(1 - 2 * middle, 2 * middle)
        if bits == 8 and not -128 <= int(levels.min()) <= int(levels.max()) <= 127:
            layer.fail("qzeros", "zeros of 128 for codes of 8 bits", "others")
    return kinds, np.ascontiguousarray(levels.T.astype(np.int8))


def integers(
    kinds: range,
    levels: npt.NDArray[np.int8],
    scale: F32,
    index: npt.NDArray[np.int64] | None = None,
) -> Levels | Floats:
    """Combine levels [M, K], each one of `kinds`, with scales float32 [M, groups].

    index: the group of each k; None: they are of neighbours. Kernels take scales of groups of
    neighbours as 16-bit floats, so weights with others become floats.
    """
    if index is not None:
        return Floats("f32", np.ascontiguousarray(levels * scale[:, index], np.float32))
    if scale.shape[1] == 1:
        rows = np.ascontiguousarray(scale[:, 0])
        return Levels(tuple(kinds), levels, rows, lambda: _floats(levels, scale))
    with np.errstate(over="ignore"):
        if not np.array_equal(scale.astype(np.float16), scale):
            return _floats(levels, scale)
    return Levels(tuple(kinds), levels, scale, lambda: _floats(levels, scale))


def narrowest(levels: npt.NDArray[Any], scale: F32) -> Levels | Floats:
    """Combine whole numbers [M, K] from -128 to 127 with scales, in the fewest bits they fit."""
    low, high = int(levels.min(initial=0)), int(levels.max(initial=0))
    kinds = range(-128, 128)
    for narrow in (TERNARY, SIXTEEN):
        if narrow[0] <= low and high <= narrow[-1]:
            kinds = range(narrow[0], narrow[-1] + 1)
            break
    return integers(kinds, np.ascontiguousarray(levels.astype(np.int8)), scale)


def _floats(levels: npt.NDArray[np.int8], scale: F32) -> Floats:
    M, K = levels.shape
    blocks = levels.reshape(M, scale.shape[1], -1) * scale[:, :, None]
    return Floats("f32", np.asarray(blocks, np.float32).reshape(M, K))
