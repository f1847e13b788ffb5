"""Levels and scales as the raw blocks of GGUF files: the inverse of blocks.from_ggml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError, shown
from sterna.formats.arithmetic import F32
from sterna.formats.ggml_blocks import BLOCKS
from sterna.formats.iq4_nl import LEVELS

__all__ = ["ENCODERS", "blocks_of"]

U8 = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


def blocks_of(name: str, levels: Array, scales: Array) -> U8:
    """Encode levels int8 [M, K] and scales of `ops.unpack` as blocks uint8 [M, bytes of a row].

    name: a format and ggml type, one of ENCODERS. Raises RequestError for another.
    """
    if name not in ENCODERS:
        raise RequestError(f"format: must be one of {', '.join(ENCODERS)}, but got {shown(name)}")
    k, of_one = BLOCKS[name].k, BLOCKS[name].format.scales.shape(1, BLOCKS[name].k)
    M, K = levels.shape
    of_blocks = np.asarray(scales, np.float32).reshape(M * K // k, *of_one[2:])
    return ENCODERS[name](levels.reshape(-1, k), of_blocks).reshape(M, -1)


# ------------------------------------------------------------------------------------ the pieces


def _half(values: F32) -> U8:
    """float32 [B] or [B, n] of values that f16 holds -> bytes [B, 2 n]."""
    halves = values.reshape(len(values), -1).astype("<f2")
    return np.ascontiguousarray(halves).view(np.uint8)


def _bytes(codes: Array, bits: int, span: int) -> U8:
    """Pack codes [B, k] in bytes: each `span` bytes take their lowest fields first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = codes.reshape(len(codes), -1, 8 // bits, span) << shifts
    return np.asarray(np.bitwise_or.reduce(fields, axis=2).reshape(len(codes), -1), np.uint8)


def _unsigned(levels: Array, offset: int) -> U8:
    return np.asarray(levels + np.int8(offset), np.uint8)


def _side_by_side(*parts: Array) -> U8:
    return np.concatenate(parts, axis=1)


def _halves_with_minima(scales: F32) -> U8:
    """d and dmin of [B, 2, 1 + groups]: ggml subtracts minima."""
    return _half(np.stack([scales[:, 0, 0], -scales[:, 1, 0]], axis=1))


# --------------------------------------------------------------------------------- blocks of 32 k


def _q4_0(levels: Array, scales: F32) -> U8:
    return _side_by_side(_half(scales), _bytes(_unsigned(levels, 8), 4, 16))


def _q4_1(levels: Array, scales: F32) -> U8:
    return _side_by_side(_half(scales), _bytes(_unsigned(levels, 0), 4, 16))


def _five_bits(scales: F32, codes: U8) -> U8:
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    return _side_by_side(_half(scales), high, _bytes(codes & 15, 4, 16))


def _q5_0(levels: Array, scales: F32) -> U8:
    return _five_bits(scales, _unsigned(levels, 16))


def _q5_1(levels: Array, scales: F32) -> U8:
    return _five_bits(scales, _unsigned(levels, 0))


def _q8_0(levels: Array, scales: F32) -> U8:
    return _side_by_side(_half(scales), np.ascontiguousarray(levels, np.int8).view(np.uint8))


def _iq4_codes(levels: Array) -> U8:
    return _bytes(np.searchsorted(np.array(LEVELS), levels).astype(np.uint8), 4, 16)


def _iq4_nl(levels: Array, scales: F32) -> U8:
    return _side_by_side(_half(scales), _iq4_codes(levels))


# -------------------------------------------------------------------------------- blocks of 256 k


def _iq4_xs(levels: Array, scales: F32) -> U8:
    whole = _unsigned(scales[:, 1:].astype(np.int8), 32)
    low = whole[:, ::2] & 15 | whole[:, 1::2] << 4
    high = ((whole >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)).sum(axis=1)
    pairs = high.astype("<u2")[:, None].view(np.uint8)
    # The nibbles of each 32 k fill 16 bytes.
    return _side_by_side(_half(scales[:, 0]), pairs, low, _iq4_codes(levels))


def _q2_k(levels: Array, scales: F32) -> U8:
    whole = scales[:, :, 1:].astype(np.uint8)
    both, codes = whole[:, 0] | whole[:, 1] << 4, _bytes(_unsigned(levels, 0), 2, 32)
    return _side_by_side(both, codes, _halves_with_minima(scales))


def _q3_k(levels: Array, scales: F32) -> U8:
    codes = _unsigned(levels, 4)
    whole = _unsigned(scales[:, 1:].astype(np.int8), 32)
    return _side_by_side(
        _bytes(codes >> 2, 1, 32),
        _bytes(codes & 3, 2, 32),
        _bytes(whole & 15, 4, 8),
        _bytes(whole >> 4, 2, 4),
        _half(scales[:, 0]),
    )


def _six_bits(scales: F32) -> U8:
    """Eight scales and eight minima of six bits in 12 bytes."""
    whole = scales[:, :, 1:].astype(np.uint8)
    first, last = whole[:, :, :4], whole[:, :, 4:]
    upper = (first | last >> 4 << 6).reshape(len(scales), 8)
    return _side_by_side(upper, last[:, 0] & 15 | last[:, 1] << 4)


def _q4_k(levels: Array, scales: F32) -> U8:
    codes = _bytes(_unsigned(levels, 0), 4, 32)
    return _side_by_side(_halves_with_minima(scales), _six_bits(scales), codes)


def _q5_k(levels: Array, scales: F32) -> U8:
    codes = _unsigned(levels, 0)
    return _side_by_side(
        _halves_with_minima(scales),
        _six_bits(scales),
        _bytes(codes >> 4, 1, 32),
        _bytes(codes & 15, 4, 32),
    )


def _q6_k(levels: Array, scales: F32) -> U8:
    codes, whole = _unsigned(levels, 32), scales[:, 1:].astype(np.int8).view(np.uint8)
    low, high = _bytes(codes & 15, 4, 64), _bytes(codes >> 4, 2, 32)
    return _side_by_side(low, high, whole, _half(scales[:, 0]))


def _tq2_0(levels: Array, scales: F32) -> U8:
    return _side_by_side(_bytes(_unsigned(levels, 1), 2, 32), _half(scales))


#: Name of format and ggml type -> encoder.
ENCODERS: dict[str, Callable[[Array, F32], U8]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q5_0": _q5_0,
    "q5_1": _q5_1,
    "q8_0": _q8_0,
    "q2_k": _q2_k,
    "q3_k": _q3_k,
    "q4_k": _q4_k,
    "q5_k": _q5_k,
    "q6_k": _q6_k,
    "iq4_nl": _iq4_nl,
    "iq4_xs": _iq4_xs,
    "tq2_0": _tq2_0,
}
