"""ik_llama.cpp's own types: weights by definition, and rows whose values that program gave."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from sterna.gguf.tensor_types import Layout, candidates

#: Type id -> SHA-256 of the float32 values [M, K], plus 0, that ik_llama.cpp 8337e4cd3 gives for
#: `drawn_rows`: of its dequantize_row_NAME, called for each row, or for the rows that lie together.
#: BF16_R16 has no such function, that of MXFP4_R8 writes beyond its rows, and that of IQ6_K takes
#: a polynomial near the table that products take: tests have these by definition.
DIGESTS: dict[str, str] = json.loads(
    Path(__file__).with_name("ik_digests.json").read_text(encoding="utf-8")
)
IDS = tuple(int(type_id) for type_id in DIGESTS)
IQ2 = (-31, -13, 1, 17, -26, -8, 6, 22)
IQ3 = (-63, -40, -23, -10, 1, 13, 28, 47, -59, -36, -19, -6, 5, 17, 32, 51)
IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
       -123, -100, -79, -61, -45, -31, -18, -6, 5, 17, 29, 42, 57, 73, 93, 117)  # fmt: skip
IQ5 = (-126, -114, -103, -92, -83, -74, -65, -57, -50, -43, -36, -30, -24, -18, -12, -6,
       -1, 5, 11, 17, 23, 29, 36, 43, 51, 59, 68, 77, 87, 97, 109, 121,
       -124, -112, -101, -90, -81, -72, -63, -55, -48, -41, -34, -28, -22, -16, -10, -4,
       1, 7, 13, 19, 25, 31, 38, 45, 53, 61, 70, 79, 89, 99, 111, 123)  # fmt: skip
IQ6 = (-127, -121, -115, -109, -104, -98, -93, -88, -84, -79, -74, -70, -66, -62, -58, -54,
       -51, -47, -44, -40, -37, -34, -31, -28, -25, -22, -19, -16, -13, -11, -8, -5,
       -2, 0, 3, 6, 9, 12, 14, 17, 20, 23, 27, 30, 33, 36, 40, 44,
       47, 51, 55, 59, 63, 68, 72, 77, 82, 87, 92, 98, 103, 109, 115, 121,
       -126, -120, -114, -108, -103, -97, -92, -87, -83, -78, -73, -69, -65, -61, -57, -53,
       -50, -46, -43, -39, -36, -33, -30, -27, -24, -21, -18, -15, -12, -10, -7, -4,
       -1, 1, 4, 7, 10, 13, 15, 18, 21, 24, 28, 31, 34, 37, 41, 45,
       48, 52, 56, 60, 64, 69, 73, 78, 83, 88, 93, 99, 104, 110, 116, 122)  # fmt: skip
#: Two levels each, a byte each, the second one higher.
IQ2_KL = (
    0xE9C1, 0x0DC1, 0xC1D8, 0xF6D8, 0x0DD8, 0x2FD8, 0xD8E9, 0xE9E9, 0x01E9, 0x0DE9, 0x1CE9,
    0xC1F6, 0x01F6, 0x0DF6, 0x2FF6, 0xE901, 0xF601, 0x0101, 0x0D01, 0x1C01, 0xD80D, 0xE90D,
    0xF60D, 0x010D, 0x0D0D, 0xC11C, 0xE91C, 0x011C, 0x1C1C, 0x2F1C, 0xE92F, 0x0D2F,
)  # fmt: skip
F16_HEADS = {"Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}


# ----------------------------------------------------------------------------- rows of any bytes


def layout_of(type_id: int) -> Layout:
    (layout,) = candidates(type_id)
    return layout


def drawn_rows(type_id: int) -> np.ndarray:
    """Rows uint8 [M, bytes] as files have them: any bits, but finite floats of all sizes."""
    layout = layout_of(type_id)
    M, blocks = 2 * max(layout.rows, 4), 3
    rng = np.random.Generator(np.random.Philox(type_id))
    raw = rng.integers(0, 256, (M, layout.row + blocks * layout.nbytes), np.uint8)
    groups = raw.reshape(M // layout.rows, -1)
    for at in head_places(layout, blocks):
        if layout.row == 4:
            bits = groups[:, at : at + 4].copy().view("<u4")
            groups[:, at : at + 4] = (bits & 0x8FFFFFFF | 0x30000000).view(np.uint8)
        elif layout.as_read == "MXFP4":
            groups[:, at] = groups[:, at] % 200
        else:
            upper = groups[:, at + 1]
            groups[:, at + 1] = np.where(upper & 0x7C == 0x7C, 0x3C, upper)
    return raw


def head_places(layout: Layout, blocks: int) -> list[int]:
    """The places of a group's floats: rows that lie together have theirs first in each block."""
    if layout.row:
        return [layout.row * r for r in range(layout.rows)]
    size, step = layout.nbytes * layout.rows, 1 if layout.as_read == "MXFP4" else 2
    count = 2 if layout.as_read in ("Q2_K", "Q4_K", "Q5_K") else 1
    if layout.rows == 1:
        inside = list(F16_HEADS.get(layout.name, (0,)))
    else:
        inside = [step * i for i in range(count * layout.rows)]
    return [size * block + at for block in range(blocks) for at in inside]


def digest(values: np.ndarray) -> str:
    """Of float32 values; a product of 0 may have either sign."""
    return hashlib.sha256((values.astype("<f4") + np.float32(0)).tobytes()).hexdigest()


# ----------------------------------------------------------------------------- weight by weight


def weights(name: str, raw: np.ndarray, nbytes: int, k: int) -> np.ndarray:
    """float32 [M, K] of rows of plain blocks, which all begin with their d."""
    rows = []
    for row in raw:
        blocks = row.reshape(-1, nbytes)
        rows.append([WEIGHTS[name](block, j) for block in blocks for j in range(k)])
    return np.array(rows, np.float32)


def _product(d: np.floating, scale: int, level: int) -> np.float32:
    """Rounded twice, as that program does."""
    return np.float32(np.float32(np.float32(d) * np.float32(scale)) * np.float32(level))


def _f16(block: np.ndarray) -> np.floating:
    return block[:2].copy().view("<f2")[0]


def _f32(block: np.ndarray) -> np.floating:
    return block[:4].copy().view("<f4")[0]


def _bit(block: np.ndarray, at: int, i: int) -> int:
    """Bit i of the bytes from `at` on."""
    return int(block[at + i // 8]) >> i % 8 & 1


def _nibble(block: np.ndarray, at: int, i: int) -> int:
    """Nibble i, two in a byte."""
    return int(block[at + i // 2]) >> 4 * (i % 2) & 15


def _half_nibble(block: np.ndarray, at: int, j: int) -> int:
    """The code of weight j where 16 bytes have 32 of them, the first 16 in the low nibbles."""
    return int(block[at + j // 32 * 16 + j % 16]) >> 4 * (j // 16 % 2) & 15


def _two(block: np.ndarray, at: int, j: int) -> int:
    """The code of weight j where 32 bytes have 128 of them, 32 apart."""
    return int(block[at + j // 128 * 32 + j % 32]) >> 2 * (j // 32 % 4) & 3


def _three(block: np.ndarray, at: int, j: int) -> int:
    """The same, with a third bit in 32 further bytes."""
    return _two(block, at, j) | (int(block[at + 64 + j % 32]) >> j // 32 & 1) << 2


def q6_0(block: np.ndarray, j: int) -> np.float32:
    upper = int(block[2 + j % 8]) >> (4 * (j % 16 // 8) + 2 * (j // 16)) & 3
    return _product(_f16(block), 1, (_half_nibble(block, 10, j) | upper << 4) - 32)


def iq2_k(block: np.ndarray, j: int) -> np.float32:
    g = j // 16
    level = IQ2[4 * _bit(block, 2, g) + _two(block, 12, j)]
    return _product(_f16(block), _nibble(block, 4, g) - 8, level)


def iq3_k(block: np.ndarray, j: int) -> np.float32:
    g = j // 16
    scale = (2 * _nibble(block, 6, g) + 1) * (-1 if _bit(block, 4, g) else 1)
    return _product(_f16(block), scale, IQ3[8 * _bit(block, 2, g) + _three(block, 14, j)])


def iq4_k(block: np.ndarray, j: int) -> np.float32:
    g = j // 16
    upper = int(block[4 + g // 4]) >> 2 * (g % 4) & 3
    level = IQ4[16 * _bit(block, 2, g) + _half_nibble(block, 16, j)]
    return _product(_f16(block), (_nibble(block, 8, g) | upper << 4) - 32, level)


def iq2_ks(block: np.ndarray, j: int) -> np.float32:
    g = j // 32
    scale = (_nibble(block, 4, g) | _bit(block, 2, 8 + g) << 4) - 16
    return _product(_f16(block), scale, IQ2[4 * _bit(block, 2, g) + _two(block, 8, j)])


def iq3_ks(block: np.ndarray, j: int) -> np.float32:
    g = j // 32
    low = int(block[4 + g % 4]) >> 4 * (g // 4) & 15
    scale = (low | _bit(block, 2, g) << 4) - 16
    return _product(_f16(block), scale, IQ3[8 * _bit(block, 2, 8 + g) + _three(block, 8, j)])


def iq2_kl(block: np.ndarray, j: int) -> np.float32:
    g, pair = j // 32, j % 32 // 2
    low = int(block[4 + g % 4]) >> 4 * (g // 4) & 15
    upper = _bit(block, 2, 2 * g) | _bit(block, 2, 2 * g + 1) << 1
    code = int(block[8 + j // 64 * 16 + pair]) >> 4 * (g % 2) & 15
    code |= (int(block[72 + pair]) >> g & 1) << 4
    level = IQ2_KL[code] >> 8 * (j % 2) & 255
    return _product(_f16(block), (low | upper << 4) - 32, level - 256 * (level > 127))


def iq4_ks(block: np.ndarray, j: int) -> np.float32:
    scale = int(block[4 + j // 32])
    level = IQ4[16 * (scale & 1) + _half_nibble(block, 12, j)]
    return _product(_f32(block), (scale & 254) - 127, level)


def iq4_kss(block: np.ndarray, j: int) -> np.float32:
    g = j // 32
    words = block[4 + 16 * g : 20 + 16 * g].copy().view("<u2").tolist()
    scale = sum((word & 1) << i for i, word in enumerate(words))
    word = words[j % 16 // 2]
    word = (word & 0xFFFE) ^ (word & 0xFFFE) >> 1
    code = word >> (8 * (j % 2) + 4 * (j // 16 % 2)) & 15
    return _product(_f32(block), (scale & 254) - 127, IQ4[16 * (scale & 1) + code])


def _long_nibble(block: np.ndarray, at: int, j: int) -> int:
    """The code of weight j where 32 bytes have 64 of them, the first 32 in the low nibbles."""
    return int(block[at + j // 64 * 32 + j % 32]) >> 4 * (j // 32 % 2) & 15


def _five(block: np.ndarray, at: int, j: int) -> int:
    """The same, with a fifth bit in 32 further bytes."""
    return _long_nibble(block, at, j) | (int(block[at + 128 + j % 32]) >> j // 32 & 1) << 4


def iq5_k(block: np.ndarray, j: int) -> np.float32:
    g = j // 16
    upper = int(block[4 + g // 4]) >> 2 * (g % 4) & 3
    level = IQ5[32 * _bit(block, 2, g) + _five(block, 16, j)]
    return _product(_f16(block), (_nibble(block, 8, g) | upper << 4) - 32, level)


def iq5_ks(block: np.ndarray, j: int) -> np.float32:
    scale = int(block[4 + j // 32])
    return _product(_f32(block), (scale & 254) - 127, IQ5[32 * (scale & 1) + _five(block, 12, j)])


def iq6_k(block: np.ndarray, j: int) -> np.float32:
    g = j // 16
    code = _long_nibble(block, 20, j) | _two(block, 148, j) << 4
    scale = int(block[4 + g : 5 + g].view(np.int8)[0])
    return _product(_f16(block), scale, IQ6[64 * _bit(block, 2, g) + code])


WEIGHTS = {
    of.__name__: of
    for of in (
        q6_0, iq2_k, iq3_k, iq4_k, iq5_k, iq6_k, iq2_ks, iq3_ks, iq2_kl, iq4_ks, iq4_kss, iq5_ks
    )
}  # fmt: skip
