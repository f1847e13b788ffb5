"""Weights in the blocks of ggml's types.

Ternary types are written here from their published layouts, others through the gguf package.

TQ2_0   256 levels, 66 bytes: qs[64], f16 d. Element 128h + 32l + m: bits 2l of qs[32h + m].
TQ1_0   256 levels, 54 bytes: qs[48], qh[4], f16 d. Element 32n + m: digit n of qs[m];
        160 + 16n + m: digit n of qs[32 + m]; 240 + 4n + m: digit n of qh[m]. A byte is
        ceil(v * 256 / 243), where digit n of v has the weight 3^(4 - n).
IQ2_BN  (ik_llama.cpp) a row is f32 scale, then 64 levels in 16 bytes: element 16l + m of a
        block: bits 2l of byte m.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError
from sterna_papers.peers.case import require

__all__ = ["TERNARY", "TYPES", "TYPE_OF", "encode", "random_head", "random_matrix", "row_bytes"]

U8 = npt.NDArray[np.uint8]

#: ggml's type ids; 135 is ik_llama.cpp's.
TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q8_0": 8, "Q4_K": 12, "Q6_K": 14, "BF16": 30,
    "TQ1_0": 34, "TQ2_0": 35, "IQ2_BN": 135,
}  # fmt: skip
#: Sterna's format -> ggml's type.
TYPE_OF = {
    "f32": "F32", "f16": "F16", "bf16": "BF16", "q8_0": "Q8_0", "q4_0": "Q4_0", "q4_1": "Q4_1",
    "q4_k": "Q4_K", "q6_k": "Q6_K",
}  # fmt: skip
BLOCK = {"TQ1_0": 256, "TQ2_0": 256, "IQ2_BN": 64}
TERNARY = tuple(BLOCK)
#: (values of a block, its bytes); IQ2_BN also has a float for each row.
SIZES = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q8_0": (32, 34), "Q4_0": (32, 18),
    "Q4_1": (32, 20), "Q4_K": (256, 144), "Q6_K": (256, 210), "TQ1_0": (256, 54),
    "TQ2_0": (256, 66), "IQ2_BN": (64, 16),
}  # fmt: skip
TILE = 64  # random rows made at a time


def row_bytes(type: str, K: int) -> int:
    """Count the bytes of a row of K values; RequestError if the type's block does not divide K."""
    values, size = SIZES[type]
    if K % values:
        raise RequestError(f"{type}: K must be a multiple of {values}, but got {K}")
    return K // values * size + (4 if type == "IQ2_BN" else 0)


def encode(type: str, levels: npt.NDArray[np.int8], scale: float) -> U8:
    """Encode levels -1..1, int8 [M, K], times one scale into uint8 [M, bytes of a row]."""
    M, K = levels.shape
    row_bytes(type, K)
    codes = (levels + 1).astype(np.uint8).reshape(M, K // BLOCK[type], BLOCK[type])
    if type == "IQ2_BN":
        row = np.full((M, 1), scale, "<f4").view(np.uint8)
        return np.concatenate([row, _fields(codes, 16).reshape(M, -1)], axis=1)
    d = np.broadcast_to(np.array([scale], "<f2").view(np.uint8), (*codes.shape[:2], 2))
    if type == "TQ2_0":
        parts = [_fields(codes[..., :128], 32), _fields(codes[..., 128:], 32)]
    else:
        parts = [_digits(codes[..., a:b], m) for a, b, m in ((0, 160, 32), (160, 240, 16))]
        parts.append(_digits(codes[..., 240:], 4))
    return np.concatenate([*parts, d], axis=-1).reshape(M, -1)


def _fields(codes: U8, m: int) -> U8:
    """Pack four codes a byte: element m*l + i goes to bits 2l of byte i."""
    shifts = np.array([0, 2, 4, 6], np.uint8).reshape(4, 1)
    packed: U8 = np.bitwise_or.reduce(codes.reshape(*codes.shape[:-1], 4, m) << shifts, axis=-2)
    return packed


def _digits(codes: U8, m: int) -> U8:
    """Pack four or five base-3 digits a byte: element m*n + i is digit n of byte i."""
    f = codes.reshape(*codes.shape[:-1], -1, m).astype(np.uint16)
    v = sum(f[..., n, :] * np.uint16(3 ** (4 - n)) for n in range(f.shape[-2]))
    packed: U8 = np.asarray((v * np.uint32(256) + 242) // 243, np.uint8)
    return packed


def random_matrix(type: str, M: int, K: int, rng: np.random.Generator) -> Iterator[U8]:
    """Yield some rows at a time of random weights [M, K] of variance 1/K, ternary or normal.

    All come from one tile of random values, rolled along both sides. No two of lcm(64, K / block)
    successive tiles are alike, and making a matrix takes no longer than writing it.
    """
    row_bytes(type, K)
    if type in TERNARY:
        levels = rng.integers(-1, 2, (TILE, K), np.int8)
        tile = encode(type, levels, (K * 2 / 3) ** -0.5)
    elif type in _SUPER:
        tile = _SUPER[type]((TILE, K // 256), K**-0.5, rng).reshape(TILE, -1)
    else:
        values = rng.standard_normal((TILE, K), np.float32) * np.float32(K**-0.5)
        quants = require("gguf.quants", "gguf")
        tile = quants.quantize(values, quants.GGMLQuantizationType(TYPES[type])).view(np.uint8)
    meta = 4 if type == "IQ2_BN" else 0
    blocks = tile[:, meta:].reshape(TILE, K // SIZES[type][0], -1)
    for i in range(-(-M // TILE)):
        rolled = np.roll(blocks, (i, i), axis=(0, 1)).reshape(TILE, -1)
        yield np.concatenate([tile[:, :meta], rolled], axis=1)[: M - i * TILE]


def random_head(M: int, K: int, rng: np.random.Generator) -> Iterator[U8]:
    """Yield some rows at a time of a random Q6_K matrix [M, K] with values of about 1."""
    row_bytes("Q6_K", K)
    blocks = _q6_k((TILE, K // 256), 1.0, rng)
    for i in range(-(-M // TILE)):
        yield np.roll(blocks, (i, i), axis=(0, 1)).reshape(TILE, -1)[: M - i * TILE]


def _q6_k(shape: tuple[int, ...], deviation: float, rng: np.random.Generator) -> U8:
    """Make blocks of 256 values of that deviation: ql[128], qh[64], int8 scales[16], f16 d.

    Any bits of ql and qh are valid; the codes' deviation is 18.5.
    """
    blocks = np.empty((*shape, 210), np.uint8)
    blocks[..., :192] = rng.integers(0, 256, (*shape, 192), np.uint8)
    blocks[..., 192:208] = rng.integers(24, 41, (*shape, 16), np.uint8)
    blocks[..., 208:] = np.array([deviation / (32 * 18.5)], "<f2").view(np.uint8)
    return blocks


def _q4_k(shape: tuple[int, ...], deviation: float, rng: np.random.Generator) -> U8:
    """Make blocks of 256 values of that deviation: f16 d, f16 dmin, scales[12], qs[128].

    The eight scales of 6 bits in scales[12], and as many minima, are all 32. Any bits of qs are
    valid; the codes' mean is 7.5 and their deviation 4.6.
    """
    d = deviation / (32 * 4.6)
    blocks = np.empty((*shape, 144), np.uint8)
    blocks[..., :4] = np.array([d, 7.5 * d], "<f2").view(np.uint8)
    blocks[..., 4:12] = 2 << 6 | 32  # the low six bits of one scale and the high two of another
    blocks[..., 12:16] = 0  # two low nibbles
    blocks[..., 16:] = rng.integers(0, 256, (*shape, 128), np.uint8)
    return blocks


_SUPER = {"Q4_K": _q4_k, "Q6_K": _q6_k}
