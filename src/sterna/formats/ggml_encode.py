"""Levels and scales as the raw blocks of GGUF files: the inverse of ggml_blocks.from_ggml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError, shown
from sterna.formats.ggml_blocks import BLOCKS
from sterna.formats.packed import PackedWeight

__all__ = ["ENCODERS", "blocks_of", "to_ggml"]

U8 = npt.NDArray[np.uint8]
Array = npt.NDArray[Any]


def to_ggml(weight: PackedWeight, isa: str = "scalar", threads: int = 1) -> U8:
    """A weight in a format of ENCODERS -> blocks uint8 [M, bytes of a row], with nothing lost."""
    return blocks_of(weight.format.name, weight.unpacked(isa, threads), weight.scales)


def blocks_of(name: str, levels: Array, scales: Array) -> U8:
    """Levels int8 [M, K], scales as `ops.unpack` gives them -> blocks uint8 [M, bytes of a row].

    name: a format and ggml type, one of ENCODERS. Raises RequestError for another.
    """
    if name not in ENCODERS:
        raise RequestError(f"to_ggml: must be one of {', '.join(ENCODERS)}, but got {shown(name)}")
    k = BLOCKS[name].k
    M, K = levels.shape
    d = np.ascontiguousarray(scales.reshape(M * K // k, -1).astype("<f2")).view(np.uint8)
    return ENCODERS[name](levels.reshape(-1, k), d).reshape(M, -1)


def _bytes(codes: U8, bits: int, span: int) -> U8:
    """Codes [B, k] -> bytes: each `span` bytes take their lowest fields first, then the next."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    fields = codes.reshape(len(codes), -1, 8 // bits, span) << shifts
    return np.asarray(np.bitwise_or.reduce(fields, axis=2).reshape(len(codes), -1), np.uint8)


def _unsigned(levels: Array, offset: int) -> U8:
    return np.asarray(levels + np.int8(offset), np.uint8)


def _q4_0(levels: Array, d: U8) -> U8:
    return np.concatenate([d, _bytes(_unsigned(levels, 8), 4, 16)], axis=1)


def _q4_1(levels: Array, d: U8) -> U8:
    return np.concatenate([d, _bytes(_unsigned(levels, 0), 4, 16)], axis=1)


def _q8_0(levels: Array, d: U8) -> U8:
    return np.concatenate([d, np.ascontiguousarray(levels, np.int8).view(np.uint8)], axis=1)


def _tq2_0(levels: Array, d: U8) -> U8:
    return np.concatenate([_bytes(_unsigned(levels, 1), 2, 32), d], axis=1)


#: Name of format and ggml type -> encoder.
ENCODERS: dict[str, Callable[[Array, U8], U8]] = {
    "q4_0": _q4_0,
    "q4_1": _q4_1,
    "q8_0": _q8_0,
    "tq2_0": _tq2_0,
}
