"""Raw blocks of GGUF files, one reader for each ggml type: bytes [B, n] as levels and scales.

A block of `k` weights has the bytes that its reader's text names, in that order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.formats.arithmetic import F32
from sterna.formats.ggml_blocks.fields import (
    U8,
    Parsed,
    bits_of,
    f16,
    fields_of,
    joined,
    nibbles,
    words_of,
)
from sterna.formats.indexed import Indexed
from sterna.formats.iq4_nl import LEVELS


def _with_minima(raw: U8, whole: npt.NDArray[Any], minima: npt.NDArray[Any]) -> F32:
    """d and dmin, four bytes, and the groups' numbers. ggml subtracts minima."""
    d = f16(raw)
    return np.stack([joined(d[:, 0], whole), joined(-d[:, 1], minima)], axis=1)


def q4_0(raw: U8) -> Parsed:
    """d, then 16 bytes of nibbles, all low ones first."""
    return fields_of(raw[:, 2:], 4, 16).astype(np.int8) - np.int8(8), f16(raw[:, :2])[:, 0]


def q4_1(raw: U8) -> Parsed:
    """Parse blocks as of q4_0, with a minimum after d."""
    return fields_of(raw[:, 4:], 4, 16).astype(np.int8), f16(raw[:, :4])


def q5_0(raw: U8) -> Parsed:
    """d, four bytes of high bits, 16 of low ones."""
    codes = fields_of(raw[:, 6:], 4, 16) | bits_of(raw[:, 2:6]) << 4
    return codes.astype(np.int8) - np.int8(16), f16(raw[:, :2])[:, 0]


def q5_1(raw: U8) -> Parsed:
    """Parse blocks as of q5_0, with a minimum after d."""
    codes = fields_of(raw[:, 8:], 4, 16) | bits_of(raw[:, 4:8]) << 4
    return codes.astype(np.int8), f16(raw[:, :4])


def q1_0(raw: U8) -> Parsed:
    """d, then a bit for each weight, the lowest first: d where it is 1, else -d."""
    return bits_of(raw[:, 2:]).astype(np.int8) * np.int8(2) - np.int8(1), f16(raw[:, :2])[:, 0]


def q2_0(raw: U8) -> Parsed:
    """d, then two bits for each weight, the lowest first: d (code - 1), as d code + (-d)."""
    d = f16(raw[:, :2])
    B, n = raw.shape
    codes = raw[:, 2:, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return codes.reshape(B, 4 * (n - 2)).astype(np.int8), np.concatenate([d, -d], axis=1)


def pq2_0(raw: U8) -> Parsed:
    """Parse bits as of q2_0, in blocks of any size, as levels -1, 0, 1, 2; 2 may be refused."""
    levels, scales = q2_0(raw)
    return levels - np.int8(1), scales[:, 0]


def q8_0(raw: U8) -> Parsed:
    """d, then the levels."""
    return raw[:, 2:].view(np.int8), f16(raw[:, :2])[:, 0]


def mxfp4(raw: U8) -> Parsed:
    """Parse mxfp4; the exponent 255 is NaN (OCP Microscaling Formats 1.0, section 5.4)."""
    values = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
    exponents = np.minimum(raw[:, 0], 254).astype(np.int32) - 127
    scales = np.where(raw[:, 0] == 255, np.nan, np.ldexp(np.float32(1), exponents))
    return values[fields_of(raw[:, 1:], 4, 16)], scales.astype(np.float32)


def iq4_nl(raw: U8) -> Parsed:
    """d, 16 bytes of nibbles, all low ones first, that number the levels."""
    return _IQ4[fields_of(raw[:, 2:], 4, 16)], f16(raw[:, :2])[:, 0]


def iq4_xs(raw: U8) -> Parsed:
    """d, two bytes of the scales' high bits, four of their low ones, 128 of nibbles."""
    high = np.ascontiguousarray(raw[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16) & 3
    low = raw[:, 4:8, None] >> np.array([0, 4], np.uint8) & np.uint8(15)
    whole = (low.reshape(-1, 8) | high << 4).astype(np.int8) - np.int8(32)
    return _IQ4[fields_of(raw[:, 8:], 4, 16)], joined(f16(raw[:, :2])[:, 0], whole)


_IQ4 = np.array(LEVELS, np.int8)


def q2_k(raw: U8) -> Parsed:
    """Parse 16 bytes of scale and minimum, 64 of codes, d, dmin."""
    scales = _with_minima(raw[:, 80:], raw[:, :16] & 15, raw[:, :16] >> 4)
    return fields_of(raw[:, 16:80], 2, 32).astype(np.int8), scales


def q3_k(raw: U8) -> Parsed:
    """Parse 32 bytes of high bits, 64 of low ones, 12 of scales, d."""
    codes = fields_of(raw[:, 32:96], 2, 32) | fields_of(raw[:, :32], 1, 32) << 2
    low, high = fields_of(raw[:, 96:104], 4, 8), fields_of(raw[:, 104:108], 2, 4)
    scales = (low | high << 4).astype(np.int8) - np.int8(32)
    return codes.astype(np.int8) - np.int8(4), joined(f16(raw[:, 108:])[:, 0], scales)


def _six_bits(raw: U8) -> tuple[U8, U8]:
    """Eight scales and eight minima of six bits in 12 bytes."""
    d, m, both = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([d & 63, both & 15 | d >> 2 & 48], axis=1)
    return scales, np.concatenate([m & 63, both >> 4 | m >> 2 & 48], axis=1)


def q4_k(raw: U8) -> Parsed:
    """d, dmin, 12 bytes of scales and minima, 128 of codes."""
    scales = _with_minima(raw[:, :4], *_six_bits(raw[:, 4:16]))
    return fields_of(raw[:, 16:], 4, 32).astype(np.int8), scales


def q5_k(raw: U8) -> Parsed:
    """Parse blocks as of q4_k, with 32 bytes of high bits before the codes."""
    scales = _with_minima(raw[:, :4], *_six_bits(raw[:, 4:16]))
    codes = fields_of(raw[:, 48:], 4, 32) | fields_of(raw[:, 16:48], 1, 32) << 4
    return codes.astype(np.int8), scales


def q6_k(raw: U8) -> Parsed:
    """Parse 128 bytes of low bits, 64 of high ones, 16 of scales, d."""
    codes = fields_of(raw[:, :128], 4, 64) | fields_of(raw[:, 128:192], 2, 32) << 4
    scales = joined(f16(raw[:, 208:])[:, 0], raw[:, 192:208].view(np.int8))
    return codes.astype(np.int8) - np.int8(32), scales


def tq1_0(raw: U8) -> Parsed:
    """Parse 52 bytes of codes, d. A byte is a fraction of 256 with levels + 1 as base-3 digits.

    32 bytes hold levels 32 i + m in digit i of byte m, 16 bytes 160 + 16 i + m, each five digits,
    and 4 bytes of four digits 240 + 4 i + m. Any bytes are levels.
    """
    return _thirds(raw, ((0, 32, 5), (32, 16, 5), (48, 4, 4))), f16(raw[:, 52:])[:, 0]


def ptq1_0(raw: U8) -> Parsed:
    """Parse 26 bytes of codes as of tq1_0, d.

    Digit i of byte m is level 16 i + m in the first 16 bytes, 80 + 8 i + m in the next 8, and
    120 + 2 i + m in the last 2, which have four digits.
    """
    return _thirds(raw, ((0, 16, 5), (16, 8, 5), (24, 2, 4))), f16(raw[:, 26:])[:, 0]


def _thirds(raw: U8, runs: tuple[tuple[int, int, int], ...]) -> npt.NDArray[np.int8]:
    """Decode runs of bytes (first, count, digits) to levels: the first digit of all bytes first."""
    pieces = []
    for first, size, digits in runs:
        powers = np.array([3**i for i in range(digits)], np.uint8)[:, None]
        fractions = raw[:, None, first : first + size] * powers  # modulo 256
        pieces.append((fractions.astype(np.uint16) * 3 >> 8).reshape(len(raw), digits * size))
    return np.asarray(np.concatenate(pieces, axis=1).astype(np.int8) - np.int8(1), np.int8)


def tq2_0(raw: U8) -> Parsed:
    """Parse 64 bytes of codes, d. A code 3 is not ternary, and is refused."""
    codes = fields_of(raw[:, :64], 2, 32)
    return codes.astype(np.int8) - np.int8(1), f16(raw[:, 64:])[:, 0]


def stq1_0(raw: U8) -> Parsed:
    """Parse 32 bytes of codes, 8 of signs, d (Tencent's Sherry, 3 of 4 weights are not 0).

    Four weights, 16 apart, share a code: its upper two bits say which is 0, the lower ones, the
    lowest first, the signs of the last two others; a bit of its own negates all. Group 16 c + g has
    the weights 64 c + g + 16 p.
    """
    codes = np.stack([raw[:, :32] & 15, raw[:, :32] >> 4], axis=2).reshape(len(raw), 64)
    code = (codes | bits_of(raw[:, 32:40]) << 4).reshape(-1, 4, 1, 16)
    levels = _SHERRY[code, np.arange(4)[:, None]]
    return levels.reshape(len(raw), 256), f16(raw[:, 40:])[:, 0]


def _sherry() -> npt.NDArray[np.int8]:
    """Return the four levels of each of the 32 codes."""
    code = np.arange(32)
    first = 1 - 2 * (code >> 4)
    others = first, first * (1 - 2 * (code & 1)), first * (1 - 2 * (code >> 1 & 1))
    rows = [np.insert(row, i >> 2 & 3, 0) for i, row in enumerate(np.stack(others, axis=1))]
    return np.array(rows, np.int8)


_SHERRY = _sherry()


# ------------------------------------------------------------------- indices of tables: IQ1 to IQ3


def _odd(codes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return 2 * codes.astype(np.int16) + 1


def _signs(seven: npt.NDArray[Any]) -> U8:
    """Seven signs each [B, n] -> bits [B, 8 n]: the eighth makes the number of those set even."""
    bits = bits_of((seven & 127).astype(np.uint8)).reshape(*seven.shape, 8)
    bits[:, :, 7] = bits.sum(axis=2) & 1
    return bits.reshape(len(seven), -1)


def _entries(name: str, index: npt.NDArray[Any], signs: U8) -> npt.NDArray[np.int8]:
    """Look up entries of a format's table, and negate the weights whose sign is set."""
    levels = _indexed(name).entries[index].reshape(len(index), -1)
    return np.asarray(np.where(signs == 1, -levels, levels), np.int8)


def _shifted(name: str, index: npt.NDArray[Any], down: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Look up entries [B, 32], each of eight ternary levels in eighths, and shift them by one."""
    levels = _indexed(name).entries[index] + np.where(down == 1, -1, 1)[:, :, None]
    return np.asarray(levels.reshape(len(index), -1), np.int8)


def _indexed(name: str) -> Indexed:
    found = formats.get(name)
    assert isinstance(found, Indexed)
    return found


def iq2_xxs(raw: U8) -> Parsed:
    """d; for each 32 weights four indices, then a word of four times seven signs and a scale."""
    groups = raw[:, 2:].reshape(len(raw), 8, 8)
    words = words_of(groups[:, :, 4:].reshape(len(raw), 32), "<u4")
    signs = _signs((words[:, :, None] >> np.arange(0, 28, 7)).reshape(len(raw), 32))
    levels = _entries("iq2_xxs", groups[:, :, :4].reshape(len(raw), 32), signs)
    return levels, joined(f16(raw[:, :2])[:, 0], _odd(words >> 28))


def iq2_xs(raw: U8) -> Parsed:
    """d, 32 words of an index and seven signs, 8 bytes of scales."""
    words = words_of(raw[:, 2:66], "<u2")
    levels = _entries("iq2_xs", words & 511, _signs(words >> 9))
    return levels, joined(f16(raw[:, :2])[:, 0], _odd(nibbles(raw[:, 66:])))


def iq2_s(raw: U8) -> Parsed:
    """d, 32 bytes of indices, 32 of signs, 8 of the indices' upper bits, 8 of scales."""
    upper = raw[:, 66:74, None] >> np.arange(0, 8, 2, dtype=np.uint8) & 3
    index = raw[:, 2:34] | upper.reshape(len(raw), 32).astype(np.int64) << 8
    levels = _entries("iq2_s", index, bits_of(raw[:, 34:66]))
    return levels, joined(f16(raw[:, :2])[:, 0], _odd(nibbles(raw[:, 74:])))


def iq3_xxs(raw: U8) -> Parsed:
    """d, 64 bytes of indices, for each 32 weights a word of four times seven signs and a scale."""
    words = words_of(raw[:, 66:], "<u4")
    signs = _signs((words[:, :, None] >> np.arange(0, 28, 7)).reshape(len(raw), 32))
    levels = _entries("iq3_xxs", raw[:, 2:66], signs)
    return levels, joined(f16(raw[:, :2])[:, 0], _odd(words >> 28))


def iq3_s(raw: U8) -> Parsed:
    """d, 64 bytes of indices, 8 of their upper bits, 32 of signs, 4 of scales."""
    index = raw[:, 2:66] | bits_of(raw[:, 66:74]).astype(np.int64) << 8
    levels = _entries("iq3_s", index, bits_of(raw[:, 74:106]))
    return levels, joined(f16(raw[:, :2])[:, 0], _odd(nibbles(raw[:, 106:])))


def iq1_s(raw: U8) -> Parsed:
    """d, 32 bytes of indices, for each 32 weights a word: upper bits, a scale and the shift."""
    words = words_of(raw[:, 34:], "<u2")
    upper = (words[:, :, None] >> np.arange(0, 12, 3) & 7).reshape(len(raw), 32)
    down = np.repeat(words >> 15, 4, axis=1)
    levels = _shifted("iq1_s", raw[:, 2:34] | upper << 8, down)
    return levels, joined(f16(raw[:, :2])[:, 0], _odd(words >> 12 & 7))


def iq1_m(raw: U8) -> Parsed:
    """32 bytes of indices, 16 of their upper bits and shifts, four words of scales and of d."""
    upper = nibbles(raw[:, 32:48])
    levels = _shifted("iq1_m", raw[:, :32] | (upper & 7).astype(np.int64) << 8, upper >> 3)
    words = words_of(raw[:, 48:], "<u2")
    bits = (words >> 12 << np.arange(0, 16, 4)).sum(axis=1).astype("<u2")
    scales = (words[:, :, None] >> np.arange(0, 12, 3) & 7).reshape(len(raw), 16)
    return levels, joined(bits.view("<f2").astype(np.float32), _odd(scales))
