"""Rows of ik_llama.cpp's types as rows of plain blocks, which `formats.ggml_blocks` reads.

Some of its types have one d for a row: each block gets it. Others have the bits of several rows
side by side (`interleaved_maps` says where), as that program repacks them for its kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.gguf.interleaved_maps import Places, bit_map
from sterna.gguf.tensor_types import Layout

__all__ = ["plain_row_bytes", "plain_rows"]

U8 = npt.NDArray[np.uint8]
CHUNK_BYTES = 1 << 18  # moved at a time: they stay in caches


def plain_row_bytes(layout: Layout, K: int) -> int:
    """Count the bytes of a row of K weights in plain blocks."""
    return K // layout.k * (layout.row + layout.nbytes)


def plain_rows(layout: Layout, raw: U8, out: U8) -> None:
    """Put rows uint8 [M, bytes] of a type into `out`, uint8 [M, bytes in plain blocks].

    M: a multiple of the rows that lie side by side.
    """
    together, size = layout.rows, raw.shape[1]
    groups = raw.reshape(len(raw) // together, together * size)
    blocks = (size - layout.row) // layout.nbytes
    to = out.reshape(len(groups), together, blocks, layout.row + layout.nbytes)
    step = max(1, CHUNK_BYTES // groups.shape[1]) if groups.size else 1
    for at in range(0, len(groups), step):
        _put(layout, groups[at : at + step], to[at : at + step])


def _put(layout: Layout, groups: U8, to: U8) -> None:
    """Put groups [G, bytes] of rows into `to`, [G, rows, blocks, bytes of a plain block]."""
    heads = layout.rows * layout.row
    to[..., : layout.row] = groups[:, :heads].reshape(len(groups), layout.rows, 1, layout.row)
    blocks = groups[:, heads:].reshape(-1, layout.rows * layout.nbytes)
    if layout.rows > 1:
        blocks = _moved(layout, blocks)
    plain = blocks.reshape(len(groups), -1, layout.rows, layout.nbytes)
    to[..., layout.row :] = plain.transpose(0, 2, 1, 3)
    if layout.name in _SIGNS:
        _SIGNS[layout.name](to)


# ---------------------------------------------------------------------------------- moves of bits


class _Move(NamedTuple):
    """Bits of a mask of some bytes that move up by `shift` (or down) to other bytes."""

    shift: int
    mask: int
    bytes_from: Places
    bytes_to: Places


@cache
def _moves(layout: Layout) -> list[_Move]:
    """Return the moves that make plain blocks of an interleaved one.

    No two moves of the same bits go to the same byte.
    """
    places = bit_map(layout.name, layout.rows, 8 * layout.nbytes).reshape(-1)
    bits = np.arange(places.size)
    shifts = bits % 8 - places % 8
    masks: dict[tuple[int, int, int], int] = {}  # of (shift, byte from, byte to)
    keys = zip(shifts.tolist(), (places // 8).tolist(), (bits // 8).tolist(), strict=True)
    for key, bit in zip(keys, (places % 8).tolist(), strict=True):
        masks[key] = masks.get(key, 0) | 1 << bit
    pairs: dict[tuple[int, int], list[tuple[int, int]]] = {}  # of (shift, mask)
    for (shift, byte_from, byte_to), mask in masks.items():
        pairs.setdefault((shift, mask), []).append((byte_from, byte_to))
    return [
        _Move(shift, mask, *np.array(of_both, np.intp).T)
        for (shift, mask), of_both in pairs.items()
    ]


def _moved(layout: Layout, blocks: U8) -> U8:
    """Interleaved blocks [n, bytes] -> plain ones, [n, bytes]."""
    from_bytes = np.ascontiguousarray(blocks.T)  # a byte of all blocks is a run of memory
    to_bytes = np.zeros_like(from_bytes)
    for shift, mask, bytes_from, bytes_to in _moves(layout):
        moved = from_bytes[bytes_from] if mask == 0xFF else from_bytes[bytes_from] & np.uint8(mask)
        if shift > 0:
            moved <<= np.uint8(shift)
        elif shift < 0:
            moved >>= np.uint8(-shift)
        if mask == 0xFF:
            to_bytes[bytes_to] = moved
        else:
            to_bytes[bytes_to] |= moved
    return np.ascontiguousarray(to_bytes.T)


# ------------------------------------------------------------------------------------------ signs


def _turn(words: npt.NDArray[np.unsignedinteger], mask: int) -> None:
    """Make signs of bits of which each tells whether the sign before it differs."""
    words ^= (words & words.dtype.type(mask)) << words.dtype.type(1)


def _turn_words(to: U8, columns: slice, mask: int, dtype: str) -> None:
    words = np.ascontiguousarray(to[..., columns]).view(dtype)
    _turn(words, mask)
    to[..., columns] = words.view(np.uint8)


_SIX = sum(0x3F << shift for shift in range(0, 28, 7))  # all but the last of each seven signs


def _iq2_xxs(to: U8) -> None:
    for group in range(8):
        _turn_words(to, slice(6 + 8 * group, 10 + 8 * group), _SIX, "<u4")


#: What turns the signs of interleaved types, which have them in a form of their own.
_SIGNS: dict[str, Callable[[U8], None]] = {
    "IQ2_XXS_R4": _iq2_xxs,
    "IQ2_XS_R4": lambda to: _turn_words(to, slice(2, 66), 0x3F << 9, "<u2"),
    "IQ3_XXS_R4": lambda to: _turn_words(to, slice(66, 98), _SIX, "<u4"),
}
