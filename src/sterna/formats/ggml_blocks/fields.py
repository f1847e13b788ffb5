"""Fields of raw blocks: what readers of several types share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32

__all__ = ["U8", "Parsed", "bits_of", "f16", "fields_of", "joined", "nibbles", "words_of"]

U8 = npt.NDArray[np.uint8]
#: (levels int8 [B, k], scales float32 [B, ...] of blocks uint8 [B, bytes])
Parsed = tuple[npt.NDArray[np.int8], F32]


def f16(raw: U8) -> F32:
    """Two bytes each [B, 2 n] -> float32 [B, n]."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def fields_of(raw: U8, bits: int, span: int) -> U8:
    """Unpack bytes [B, n] to codes [B, n * 8 / bits]: the lowest fields of each `span` first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    B, n = raw.shape
    fields = raw.reshape(B, n // span, 1, span) >> shifts & np.uint8((1 << bits) - 1)
    return np.asarray(fields.reshape(B, n * 8 // bits), np.uint8)


def bits_of(raw: U8) -> U8:
    """Unpack bytes [B, n] to bits [B, 8 n], the lowest of each byte first."""
    return np.unpackbits(raw, axis=1, bitorder="little")


def joined(d: F32, whole: npt.NDArray[Any]) -> F32:
    """d [B] and its groups' whole numbers [B, G] -> float32 [B, 1 + G]."""
    return np.concatenate([d[:, None], whole.astype(np.float32)], axis=1)


def nibbles(raw: U8) -> U8:
    """Bytes [B, n] -> [B, 2 n], the low nibble of each first."""
    return np.stack([raw & 15, raw >> 4], axis=2).reshape(len(raw), -1)


def words_of(raw: U8, dtype: str) -> npt.NDArray[Any]:
    """Bytes [B, n] as little-endian words, int64."""
    return np.ascontiguousarray(raw).view(dtype).astype(np.int64)
