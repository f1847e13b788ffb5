"""Where ik_llama.cpp's interleaved types have the bits of plain blocks.

A type such as Q4_K_R4 has four rows side by side: a block of it has the bits of four plain blocks
in another order. A map gives, for each bit of the plain blocks, its place in the interleaved one;
`interleaved_rows` moves the bits. The order of most arrays is one that the vectors of a dot product
read: four k of one row, then the same of the next.

Layouts: ggml-common.h and iqk_quantize.cpp of ik_llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["MAPS", "Places", "bit_map"]

Places = npt.NDArray[np.intp]
#: (bits of a plain block [n, bits], their places in the interleaved block [rows, n, bits])
Piece = tuple[Places, Places]

# The places of weights j, in groups g of 32 of which each four are a quad q, and of rows r.
_R4, _R8 = np.arange(4)[:, None], np.arange(8)[:, None]


def _at(byte: Places | int, shift: Places | int, bits: int) -> Places:
    """Places of fields of some bits in bytes from a shift on, [..., bits]."""
    first = 8 * np.asarray(byte) + shift
    return np.asarray(first[..., None] + np.arange(bits), np.intp)


def _weights(K: int) -> tuple[Places, Places, Places, Places]:
    """(j, group of 32, quad in it, place in the quad) of K weights."""
    j = np.arange(K)
    return j, j // 32, j % 32 // 4, j % 4


def _bytes(to: int, at: int, row_bytes: int) -> Piece:
    """Move whole bytes: `row_bytes` of four rows one after the other, as an f16 of each row."""
    i = np.arange(row_bytes)
    return _at(to + i, 0, 8), _at(at + row_bytes * _R4 + i, 0, 8)


def _each(to: int, at: int, count: int, run: int = 1, rows: Places = _R4) -> Piece:
    """Move `count` bytes of a plain block, of which each row in turn has `run`."""
    i = np.arange(count)
    return _at(to + i, 0, 8), _at(at + i // run * run * len(rows) + run * rows + i % run, 0, 8)


# -------------------------------------------------------------------------------------- codes


def _half_bytes(to: int, at: int, K: int) -> Piece:
    """Nibbles: of 32 weights, plain blocks have the first 16 low, then the others high."""
    j, g, _, _ = _weights(K)
    plain = _at(to + 16 * g + j % 16, 4 * (j // 16 % 2), 4)
    return plain, _interleaved_nibbles(at, K)


def _long_half_bytes(to: int, at: int, span: int) -> Piece:
    """Nibbles of 256 weights: plain blocks have `span` low, then as many high."""
    j = np.arange(256)
    plain = _at(to + j // (2 * span) * span + j % span, 4 * (j // span % 2), 4)
    return plain, _interleaved_nibbles(at, 256)


def _interleaved_nibbles(at: int, K: int) -> Places:
    _, g, q, i = _weights(K)
    byte = 64 * g + 16 * (q // 4) + 32 * (q % 2) + 4 * _R4 + i
    return _at(at + byte, 4 * (q // 2 % 2), 4)


def _two_bits(to: int, at: int) -> Piece:
    j, g, q, i = _weights(256)
    plain = _at(to + j // 128 * 32 + j % 32, 2 * (j // 32 % 4), 2)
    return plain, _at(at + 32 * g + 16 * (q // 4) + 4 * _R4 + i, 2 * (q % 4), 2)


def _one_bit(to: int, at: int) -> Piece:
    """The third bit of 256 codes: a quad's place is the bit."""
    j, g, q, i = _weights(256)
    return _at(to + j % 32, j // 32, 1), _at(at + 16 * g + 4 * _R4 + i, q, 1)


def _fifth_bits(to: int, at: int, of_quads: tuple[int, int, int]) -> Piece:
    """The fifth bit of 256 codes; of_quads: the bit that each bit of a quad's number gives."""
    j, g, q, i = _weights(256)
    bit = sum(value * (q >> n & 1) for n, value in enumerate(of_quads))
    return _at(to + j % 32, j // 32, 1), _at(at + 16 * g + 4 * _R4 + i, bit, 1)


# ------------------------------------------------------------------------------------- scales


def _pairs(count: int) -> tuple[Places, Places]:
    """(group, its place among interleaved scales): those of two groups lie 4 apart."""
    g = np.arange(count)
    return g, 8 * (g // 2) + 4 * (g % 2) + _R4


def _low_scales(plain: Places, at: int, place: Places) -> Piece:
    """Four bits of each: those of the first half of an array lie low."""
    return plain, _at(at + place % 32, 4 * (place // 32), 4)


def _upper_scales(plain: Places, at: int, place: Places) -> Piece:
    """Two bits of each, of four quarters."""
    return plain, _at(at + place % 16, 2 * (place // 16), 2)


def _shifts(to: int, at: int) -> Piece:
    """A bit of each group of 16: bytes of the even groups of four rows, then of the odd ones."""
    g = np.arange(16)
    return _at(to, g, 1), _at(at + 4 * (g % 2) + _R4, g // 2, 1)


def _nibbles_of(to: int, g: Places) -> Places:
    """Plain scales of four bits, two in a byte."""
    return _at(to + g // 2, 4 * (g % 2), 4)


def _six_bit_scales(at_high: int, at_low: int) -> list[Piece]:
    """Scales and minima of Q4_K and Q5_K, eight of each in 12 bytes from byte 4 on."""
    g = np.arange(8)
    place, late = 4 * g + _R4, g // 4
    pieces = []
    for part in (0, 1):  # scales, minima
        byte = 4 + 4 * part + g % 4
        low = _at(np.where(late, 12 + g % 4, byte), np.where(late, 4 * part, 0), 4)
        high = _at(byte, np.where(late, 6, 4), 2)
        pieces.append((low, _at(at_low + place, 4 * part, 4)))
        pieces.append((high, _at(at_high + place % 16, 4 * (place // 16) + 2 * part, 2)))
    return pieces


# -------------------------------------------------------------------------------------- types


def _legacy(bits: int) -> list[Piece]:
    """Q5_0 and Q6_0: d, upper bits, nibbles."""
    j, _, q, i = _weights(32)
    first = 2 + 4 * (bits - 4)
    upper = (
        (_at(2, j, 1), _at(8 + 4 * _R4 + i, q // 4 + 2 * (q % 2) + 4 * (q // 2 % 2), 1))
        if bits == 5
        else (
            _at(2 + j % 8, 4 * (j % 16 // 8) + 2 * (j // 16), 2),
            _at(8 + 16 * (q // 4) + 4 * _R4 + i, 2 * (q % 2) + 4 * (q // 2 % 2), 2),
        )
    )
    return [_bytes(0, 0, 2), upper, _half_bytes(first, 4 * first, 32)]


def _eight_rows(head: int, codes: int) -> list[Piece]:
    """Q4_0, Q8_0 and MXFP4: a head, and bytes, four of each row in turn."""
    i = np.arange(head)
    scale = _at(i, 0, 8), _at(head * _R8 + i, 0, 8)
    return [scale, _each(head, 8 * head, codes, 4, _R8)]


def _q2_k() -> list[Piece]:
    g, place = _pairs(16)
    scales = _at(g, 0, 8), _at(16 + place, 0, 8)
    return [_bytes(80, 0, 2), _bytes(82, 8, 2), scales, _two_bits(16, 80)]


def _q3_k() -> list[Piece]:
    g, place = _pairs(16)
    return [
        _bytes(108, 0, 2),
        _upper_scales(_at(104 + g % 4, 2 * (g // 4), 2), 8, place),
        _low_scales(_at(96 + g % 8, 4 * (g // 8), 4), 24, place),
        _one_bit(0, 56),
        _two_bits(32, 184),
    ]


def _q4_k() -> list[Piece]:
    heads = [_bytes(0, 0, 2), _bytes(2, 8, 2)]
    return [*heads, *_six_bit_scales(16, 32), _long_half_bytes(16, 64, 32)]


def _q5_k() -> list[Piece]:
    heads = [_bytes(0, 0, 2), _bytes(2, 8, 2)]
    codes = [_fifth_bits(16, 64, (2, 1, 4)), _long_half_bytes(48, 192, 32)]
    return [*heads, *_six_bit_scales(16, 32), *codes]


def _q6_k() -> list[Piece]:
    g, place = _pairs(16)
    j, group, q, i = _weights(256)
    plain = _at(128 + j // 128 * 32 + j % 32, 2 * (j // 32 % 4), 2)
    byte = 72 + 32 * group + 16 * (q // 4) + 4 * _R4 + i
    upper = plain, _at(byte, 4 * (q % 2) + 2 * (q // 2 % 2), 2)
    scales = _at(192 + g, 0, 8), _at(8 + place, 0, 8)
    return [_bytes(208, 0, 2), scales, upper, _long_half_bytes(0, 328, 64)]


def _iq4_nl() -> list[Piece]:
    return [_bytes(0, 0, 2), _half_bytes(2, 8, 32)]


def _iq4_xs() -> list[Piece]:
    g, i = np.arange(8), np.arange(2)
    place = 8 * g + _R8
    j, group, q, k = _weights(256)
    codes = _at(8 + 16 * group + j % 16, 4 * (j // 16 % 2), 4)
    to = _at(64 + 128 * group + 32 * (q // 2) + 4 * _R8 + k, 4 * (q % 2), 4)
    return [
        (_at(i, 0, 8), _at(2 * _R8 + i, 0, 8)),
        _upper_scales(_at(2, 2 * g, 2), 16, place),
        _low_scales(_nibbles_of(4, g), 32, place),
        (codes, to),
    ]


def _iq4_ks() -> list[Piece]:
    return [_each(0, 0, 8), _half_bytes(8, 32, 256)]


def _iq4_or_5_k() -> list[Piece]:
    """All but the codes of IQ4_K and IQ5_K."""
    g, place = _pairs(16)
    return [
        _bytes(0, 0, 2),
        _shifts(2, 8),
        _upper_scales(_at(4 + g // 4, 2 * (g % 4), 2), 16, place),
        _low_scales(_nibbles_of(8, g), 32, place),
    ]


def _five_bits(to: int, at: int) -> list[Piece]:
    """Nibbles of 256 codes, and behind them their fifth bits."""
    fifth = _fifth_bits(to + 128, at + 512, (4, 1, 2))
    return [_long_half_bytes(to, at, 32), fifth]


def _iq3_k() -> list[Piece]:
    g, place = _pairs(16)
    return [
        _bytes(0, 0, 2),
        _shifts(2, 8),
        (_at(4, g, 1), _at(16 + place % 8, place // 8, 1)),
        _low_scales(_nibbles_of(6, g), 24, place),
        _two_bits(14, 56),
        _one_bit(78, 312),
    ]


def _iq2_k() -> list[Piece]:
    g, place = _pairs(16)
    scales = _low_scales(_nibbles_of(4, g), 16, place)
    return [_bytes(0, 0, 2), _shifts(2, 8), scales, _two_bits(12, 48)]


def _iq1_s() -> list[Piece]:
    """Eight blocks of 32 weights, of 24 bytes; d is a row's."""
    i, g = np.arange(32), np.arange(8)
    index = _at(i, 0, 8), _at(24 * (i // 4) + 4 * (i % 4) + _R4, 0, 8)
    words = _at(32 + 2 * g, 0, 16), _at(24 * g + 16 + 2 * _R4, 0, 16)
    return [index, words]


def _with_scale_bits(plain_words: int, at: int, step: int) -> list[Piece]:
    """Words of four times seven signs and a scale: bytes of a bit of the scale and seven signs."""
    g, i = np.repeat(np.arange(8), 4), np.tile(np.arange(4), 8)
    word = 8 * (plain_words + step * g)
    byte = 8 * (at + 16 * g + 4 * _R4 + i)
    signs = (word + 7 * i)[:, None] + np.arange(7), byte[..., None] + np.arange(1, 8)
    return [signs, ((word + 28 + i)[:, None], byte[..., None])]


def _iq2_xxs() -> list[Piece]:
    i = np.arange(32)
    index = _at(2 + 8 * (i // 4) + i % 4, 0, 8), _at(136 + 16 * (i // 4) + 4 * _R4 + i % 4, 0, 8)
    return [_bytes(0, 0, 2), *_with_scale_bits(6, 8, 8), index]


def _iq3_xxs() -> list[Piece]:
    return [_bytes(0, 0, 2), *_with_scale_bits(66, 8, 4), _each(2, 136, 64, 8)]


def _iq2_xs() -> list[Piece]:
    return [_bytes(0, 0, 2), _each(2, 8, 64, 8), _each(66, 264, 8)]


def _iq2_s() -> list[Piece]:
    heads = [_bytes(0, 0, 2), _each(2, 8, 32, 4), _each(66, 136, 8)]
    return [*heads, _each(34, 168, 32, 4), _each(74, 296, 8)]


def _iq3_s() -> list[Piece]:
    g, (j, group, q, i) = np.arange(8), _weights(256)
    place, index = 4 * g + _R4, np.arange(64)
    byte = 32 * (index // 8) + 8 * (index % 4) + 4 * (index // 4 % 2) + _R4
    return [
        _bytes(0, 0, 2),
        (_at(2 + index, 0, 8), _at(8 + byte, 0, 8)),
        _each(66, 264, 8),
        (_at(74, j, 1), _at(296 + 16 * group + 4 * _R4 + i, q, 1)),
        (_nibbles_of(106, g), _at(424 + place % 16, 4 * (place // 16), 4)),
    ]


#: Interleaved type -> its map.
MAPS: dict[str, Callable[[], list[Piece]]] = {
    "Q4_0_R8": lambda: _eight_rows(2, 16),
    "Q8_0_R8": lambda: _eight_rows(2, 32),
    "MXFP4_R8": lambda: _eight_rows(1, 16),
    "Q5_0_R4": lambda: _legacy(5),
    "Q6_0_R4": lambda: _legacy(6),
    "Q2_K_R4": _q2_k,
    "Q3_K_R4": _q3_k,
    "Q4_K_R4": _q4_k,
    "Q5_K_R4": _q5_k,
    "Q6_K_R4": _q6_k,
    "IQ4_NL_R4": _iq4_nl,
    "IQ4_XS_R8": _iq4_xs,
    "IQ4_KS_R4": _iq4_ks,
    "IQ4_K_R4": lambda: [*_iq4_or_5_k(), _half_bytes(16, 64, 256)],
    "IQ5_K_R4": lambda: [*_iq4_or_5_k(), *_five_bits(16, 64)],
    "IQ5_KS_R4": lambda: [_each(0, 0, 8), *_five_bits(8, 32)],
    "IQ3_K_R4": _iq3_k,
    "IQ2_K_R4": _iq2_k,
    "IQ1_S_R4": _iq1_s,
    "IQ2_XXS_R4": _iq2_xxs,
    "IQ2_XS_R4": _iq2_xs,
    "IQ2_S_R4": _iq2_s,
    "IQ3_XXS_R4": _iq3_xxs,
    "IQ3_S_R4": _iq3_s,
    "BF16_R16": lambda: [_each(0, 0, 4, 4, np.arange(16)[:, None])],
}


def bit_map(name: str, rows: int, bits: int) -> Places:
    """Return the place of each bit of the plain blocks of `rows` rows, [rows, bits of a block]."""
    places = np.full((rows, bits), -1, np.intp)
    for plain, interleaved in MAPS[name]():
        assert (places[:, plain] == -1).all()
        places[:, plain] = np.broadcast_to(interleaved, (rows, *plain.shape))
    return places
