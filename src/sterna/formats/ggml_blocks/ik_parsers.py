"""Raw blocks of the types that ik_llama.cpp alone has, as `parsers` has those of ggml.

Where a file has one d for a row, each block begins with it here (`gguf/ik_rows.py` puts it there).
Layouts and tables: ggml-common.h and iqk_quantize.cpp of ik_llama.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
from sterna.formats.ik_quants import IQ2, IQ3, IQ5, IQ5_SHIFT, IQ6, IQ6_SHIFT, SHIFT
from sterna.formats.iq4_nl import LEVELS

#: Levels of the two weights of each of IQ2_KL's 32 pairs (iq2kl_values): their numbers among eight.
PAIRS = np.array(
    [
        (0, 2), (0, 5), (1, 0), (1, 3), (1, 5), (1, 7), (2, 1), (2, 2), (2, 4), (2, 5), (2, 6),
        (3, 0), (3, 4), (3, 5), (3, 7), (4, 2), (4, 3), (4, 4), (4, 5), (4, 6), (5, 1), (5, 2),
        (5, 3), (5, 4), (5, 5), (6, 0), (6, 2), (6, 4), (6, 6), (6, 7), (7, 2), (7, 5),
    ]
)  # fmt: skip


def _levels(table: tuple[int, ...], codes: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    return np.asarray(np.array(table, np.int8)[codes.reshape(len(codes), -1)], np.int8)


def _with_shifts(codes: U8, bits: int, shifts: npt.NDArray[Any]) -> U8:
    """Codes [B, 256] of some bits, with their group's shift [B, groups] above these."""
    return codes | (np.repeat(shifts, 256 // shifts.shape[1], axis=1) << bits).astype(np.uint8)


def _halves(raw: U8) -> U8:
    """Nibbles of bytes [B, n]: all low ones, then all high ones, [B, 2 n]."""
    return np.concatenate([raw & 15, raw >> 4], axis=1)


def _two_of_each(raw: U8) -> U8:
    """Fields of two bits of bytes [B, n], the lowest of each first, [B, 4 n]."""
    fields = raw[:, :, None] >> np.arange(0, 8, 2, dtype=np.uint8) & np.uint8(3)
    return np.asarray(fields.reshape(len(raw), -1), np.uint8)


def _six_bit_scales(raw: U8) -> npt.NDArray[np.int16]:
    """Four bytes of upper bits from byte 4 on, 8 of lower ones: from -32, [B, 16]."""
    return (nibbles(raw[:, 8:16]) | _two_of_each(raw[:, 4:8]) << 4).astype(np.int16) - 32


def _five_bits(raw: U8) -> U8:
    """128 bytes of four bits, 32 apart in a byte, and 32 of the highest ones, [B, 256]."""
    return np.asarray(fields_of(raw[:, :128], 4, 32) | _high(raw[:, 128:]) << 4, np.uint8)


def _shifted_levels(
    table: tuple[int, ...], shift: int, codes: U8, shifts: npt.NDArray[Any]
) -> npt.NDArray[np.int8]:
    """Levels of codes [B, 256], `shift` more in groups whose bit of `shifts` [B, groups] is set."""
    more = np.repeat(shifts, 256 // shifts.shape[1], axis=1) * shift
    return np.asarray(_levels(table, codes) + more, np.int8)


def _high(raw: U8) -> U8:
    """Thirty-two bytes of one bit for each weight, 32 apart in a byte."""
    return fields_of(raw, 1, 32)


def q6_0(raw: U8) -> Parsed:
    """d, eight bytes of the upper two bits, 16 of the lower four."""
    upper = raw[:, 2:10].reshape(-1, 1, 1, 8) >> np.array([[0, 4], [2, 6]], np.uint8)[..., None] & 3
    codes = fields_of(raw[:, 10:], 4, 16) | upper.reshape(len(raw), 32) << 4
    return codes.astype(np.int8) - np.int8(32), f16(raw[:, :2])[:, 0]


def iq2_k(raw: U8) -> Parsed:
    """d, a word of shifts, 8 bytes of scales, 64 of codes."""
    whole = nibbles(raw[:, 4:12]).astype(np.int16) - 8
    codes = _with_shifts(fields_of(raw[:, 12:], 2, 32), 2, bits_of(raw[:, 2:4]))
    return _levels(IQ2, codes), joined(f16(raw[:, :2])[:, 0], whole)


def iq3_k(raw: U8) -> Parsed:
    """d, words of shifts and of signs, 8 bytes of odd scales, 64 of low bits, 32 of high ones."""
    size = 2 * nibbles(raw[:, 6:14]).astype(np.int16) + 1
    whole = np.where(bits_of(raw[:, 4:6]) == 1, -size, size)
    three = fields_of(raw[:, 14:78], 2, 32) | _high(raw[:, 78:]) << 2
    codes = _with_shifts(three.astype(np.uint8), 3, bits_of(raw[:, 2:4]))
    return _levels(IQ3, codes), joined(f16(raw[:, :2])[:, 0], whole)


def iq4_k(raw: U8) -> Parsed:
    """d, a word of shifts, four bytes of upper bits of scales, 8 of lower ones, 128 of codes."""
    d, whole = f16(raw[:, :2])[:, 0], _six_bit_scales(raw)
    minima = SHIFT * whole * bits_of(raw[:, 2:4])
    scales = np.stack([joined(d, whole), joined(d, minima)], axis=1)
    return _levels(LEVELS, fields_of(raw[:, 16:], 4, 16)), scales


def iq2_ks(raw: U8) -> Parsed:
    """d, a byte of shifts, one of the scales' highest bits, four of lower ones, 64 of codes."""
    whole = (nibbles(raw[:, 4:8]) | bits_of(raw[:, 3:4]) << 4).astype(np.int16) - 16
    codes = _with_shifts(fields_of(raw[:, 8:], 2, 32), 2, bits_of(raw[:, 2:3]))
    return _levels(IQ2, codes), joined(f16(raw[:, :2])[:, 0], whole)


def iq3_ks(raw: U8) -> Parsed:
    """d, a byte of the scales' highest bits, one of shifts, four of lower ones, codes as iq3_k."""
    whole = (_halves(raw[:, 4:8]) | bits_of(raw[:, 2:3]) << 4).astype(np.int16) - 16
    three = fields_of(raw[:, 8:72], 2, 32) | _high(raw[:, 72:]) << 2
    codes = _with_shifts(three.astype(np.uint8), 3, bits_of(raw[:, 3:4]))
    return _levels(IQ3, codes), joined(f16(raw[:, :2])[:, 0], whole)


def iq2_kl(raw: U8) -> Parsed:
    """d, a word of upper bits of scales, four bytes of lower ones, 64 of low bits, 16 of high ones.

    Codes number pairs of weights.
    """
    whole = (_halves(raw[:, 4:8]) | _two_of_each(raw[:, 2:4]) << 4).astype(np.int16) - 32
    index = fields_of(raw[:, 8:72], 4, 16) | fields_of(raw[:, 72:], 1, 16) << 4
    return _levels(IQ3[:8], PAIRS[index]), joined(f16(raw[:, :2])[:, 0], whole)


def _float32(raw: U8) -> npt.NDArray[np.float32]:
    """The d that a block begins with, [B]."""
    return np.ascontiguousarray(raw[:, :4]).view("<f4")[:, 0]


def _odd(codes: npt.NDArray[Any]) -> npt.NDArray[np.int16]:
    """Scales of bytes, of which the lowest bit is a shift."""
    return np.asarray((codes & 254).astype(np.int16) - 127)


def _wide(raw: U8, codes: npt.NDArray[Any]) -> F32:
    """Scales of a float32 d and odd codes [B, 8], of which the lowest bit is a shift."""
    d, whole = _float32(raw), _odd(codes)
    with np.errstate(over="ignore", invalid="ignore"):
        of_minima = np.float32(SHIFT) * d
    return np.stack([joined(d, whole), joined(of_minima, whole * (codes & 1))], axis=1)


def iq4_ks(raw: U8) -> Parsed:
    """A float32 d, 8 bytes of scales, 128 of codes."""
    return _levels(LEVELS, fields_of(raw[:, 12:], 4, 16)), _wide(raw, raw[:, 4:12])


def iq4_kss(raw: U8) -> Parsed:
    """A float32 d; for each 32 weights eight words, whose lowest bits are a scale.

    The other bits are codes, each changed by the bit above it.
    """
    words = words_of(raw[:, 4:], "<u2")
    scales = ((words & 1).reshape(-1, 8, 8) << np.arange(8)).sum(axis=2)
    codes = (words & 0xFFFE) ^ (words & 0xFFFE) >> 1
    pairs = codes.astype("<u2").view(np.uint8).reshape(len(raw), 128)
    return _levels(LEVELS, fields_of(pairs, 4, 16)), _wide(raw, scales)


def iq5_k(raw: U8) -> Parsed:
    """d, a word of shifts, four bytes of upper bits of scales, 8 of lower ones, 160 of codes."""
    levels = _shifted_levels(IQ5, IQ5_SHIFT, _five_bits(raw[:, 16:]), bits_of(raw[:, 2:4]))
    return levels, joined(f16(raw[:, :2])[:, 0], _six_bit_scales(raw))


def iq5_ks(raw: U8) -> Parsed:
    """A float32 d, 8 bytes of scales, 160 of codes; a scale is of two groups of 16."""
    codes = raw[:, 4:12]
    levels = _shifted_levels(IQ5, IQ5_SHIFT, _five_bits(raw[:, 12:]), codes & 1)
    return levels, joined(_float32(raw), np.repeat(_odd(codes), 2, axis=1))


def iq6_k(raw: U8) -> Parsed:
    """d, a word of shifts, 16 scales, 128 bytes of four bits, 64 of the upper two."""
    codes = np.asarray(
        fields_of(raw[:, 20:148], 4, 32) | fields_of(raw[:, 148:], 2, 32) << 4, np.uint8
    )
    levels = _shifted_levels(IQ6, IQ6_SHIFT, codes, bits_of(raw[:, 2:4]))
    return levels, joined(f16(raw[:, :2])[:, 0], raw[:, 4:20].view(np.int8))
