"""Encodings of power-of-two weights: bits by the paper's Table 1, products, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, failure
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.errors import RequestError
from sterna.formats.pot_encodings import ENCODINGS, Encoding

ALL = list(ENCODINGS.values())
FLOATS = [e for e in ALL if not e.fixed]


def row(*values: int) -> np.ndarray:
    """One row of integers."""
    return np.array([values], np.int64)


def by_definition(name: str, sign: int, e: int) -> int:
    """Table 1, one weight in a word (pot4: in a nibble)."""
    s = int(sign < 0)
    return {
        "pot8": s << 7 | e & 0x1F,
        "pot16": s << 15 | (e & 0xFF) << 7,
        "pot4": s << 3 | e & 0x07,
        "fxpot": s << 31 | e & 0x1F,
    }[name]


@pytest.mark.parametrize("encoding", ALL, ids=list(ENCODINGS))
def test_every_weight(encoding: Encoding) -> None:
    """All signs and exponents: the bits of Table 1, and back."""
    e = np.tile(np.arange(encoding.max_exponent + 1), 2)
    signs = np.repeat([1, -1], len(e) // 2).astype(np.int8)
    fields = [by_definition(encoding.name, s, int(x)) for s, x in zip(signs, e, strict=True)]
    if encoding.name == "pot4":
        fields = [low | high << 4 for low, high in zip(fields[::2], fields[1::2], strict=True)]
    codes = encoding.encode(signs[None], e[None])
    assert codes.dtype == encoding.word
    assert codes.tolist() == [fields]
    back = encoding.decode(codes, len(e))
    assert (back[0].dtype, back[1].dtype) == (np.int8, np.uint8)
    np.testing.assert_array_equal(back[0], signs[None])
    np.testing.assert_array_equal(back[1], e[None])


def test_an_example() -> None:
    """-4, 1 and -128 in each: the nibbles of pot4 low one first, the last one padded with 0."""
    signs, exponents = row(-1, 1, -1), row(2, 0, 7)
    words = {e.name: e.encode(signs, exponents).tolist() for e in ALL}
    assert words == {
        "pot8": [[0x82, 0x00, 0x87]],
        "pot16": [[0x8100, 0x0000, 0x8380]],
        "pot4": [[0x0A, 0x0F]],
        "fxpot": [[0x80000002, 0, 0x80000007]],
    }


@settings(max_examples=60)
@given(st.data())
def test_round_trip(data: st.DataObject) -> None:
    """Any shape, an odd K and no rows or columns among them."""
    encoding = data.draw(st.sampled_from(ALL))
    M, K = data.draw(st.tuples(st.integers(0, 5), st.integers(0, 9)))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    signs = rng.choice(np.array([-1, 1], np.int8), (M, K))
    exponents = rng.integers(0, encoding.max_exponent + 1, (M, K)).astype(np.uint8)
    codes = encoding.encode(signs, exponents)
    assert codes.shape == (M, encoding.words(K))
    for got, expected in zip(encoding.decode(codes, K), (signs, exponents), strict=True):
        np.testing.assert_array_equal(got, expected)


SPECIAL = np.array(
    [0.0, -0.0, 1e-45, -3e-39, 1.1754942e-38, 1.0, -1.5, 3.4e38, np.inf, -np.inf, np.nan],
    np.float32,
)


@pytest.mark.parametrize("encoding", FLOATS, ids=lambda e: e.name)
def test_ieee_products(encoding: Encoding) -> None:
    """One multiplication after the other by 2 gives the same: results are exact or infinite."""
    x = SPECIAL
    for e in range(encoding.max_exponent + 1):
        for sign in (1, -1):
            got = encoding.multiply(SPECIAL, np.array(sign), np.array(e))
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, np.float32(sign) * x)
            numbers = ~np.isnan(x)
            assert (np.signbit(got) == np.signbit(np.float32(sign) * x))[numbers].all()
        with np.errstate(over="ignore"):
            x = x * np.float32(2)


def test_plain_additions() -> None:
    """special=False: bits of the exponent are added, also where the result means nothing."""
    pot16 = ENCODINGS["pot16"]
    x = np.array([1.5, -3.0, 0.0, np.inf, 1.0], np.float32)
    e, signs = np.array([4, 1, 3, 1, 129]), np.array([1, -1, 1, 1, -1])
    got = pot16.multiply(x, signs, e, special=False).view(np.uint32).tolist()
    # 0 becomes 2^3's exponent field, an infinity a negative zero: 0x7f800000 + 0x00800000.
    assert got == [0x41C00000, 0x40C00000, 3 << 23, 0x80000000, 0]
    normal = np.array([1.5, -1e-38 * 2, 7e30], np.float32)
    for encoding in FLOATS:
        e = np.array([0, 7, 3])
        expected = encoding.multiply(normal, -np.ones(3, np.int8), e)
        assert_same_bits(
            encoding.multiply(normal, -np.ones(3, np.int8), e, special=False), expected
        )


def test_fixed_products() -> None:
    """Shifts of int32 modulo 2^32, the sign after the shift."""
    x = np.array([3, -3, 2**31 - 1, -(2**31), 1, 5], np.int32)
    signs, e = np.array([1, -1, 1, -1, -1, 1]), np.array([2, 4, 1, 0, 31, 31])
    got = ENCODINGS["fxpot"].multiply(x, signs, e)
    assert got.dtype == np.int32
    exact = [int(a) * int(s) << int(b) for a, s, b in zip(x, signs, e, strict=True)]
    assert got.tolist() == [(v + 2**31) % 2**32 - 2**31 for v in exact]


GOOD = (row(1, -1, 1), row(0, 1, 2))
Use = Callable[[Encoding], Any]
BAD: list[tuple[str, Use, tuple[str, ...]]] = [
    ("sign 0", lambda e: e.encode(row(1, 0, 1), GOOD[1]), ("(0, 1)", "is 0", "no zero", "pot4z")),
    ("sign 3", lambda e: e.encode(row(1, 1, 3), GOOD[1]), ("(0, 2)", "is 3", "exponent")),
    ("float", lambda e: e.encode(GOOD[0] * 1.0, GOOD[1]), ("integers", "float64", "pot_methods")),
    ("bool", lambda e: e.encode(GOOD[0], GOOD[1] > 0), ("integers", "bool")),
    ("negative", lambda e: e.encode(GOOD[0], row(0, 0, -1)), ("(0, 2)", "is -1", "scale")),
    ("large", lambda e: e.encode(GOOD[0], row(0, 256, 0)), ("(0, 1)", "is 256", "0 to")),
    ("shapes", lambda e: e.encode(GOOD[0], GOOD[1][:, :2]), ("(1, 3)", "(1, 2)")),
    ("one dimension", lambda e: e.encode(GOOD[0][0], GOOD[1][0]), ("[M, K]", "(3,)")),
    ("word type", lambda e: e.decode(np.zeros((1, 3), np.int8), 3), ("words must be", "int8")),
    ("K", lambda e: e.decode(np.zeros((1, 3), e.word), 9), ("K=9", "(1, 3)")),
    ("K < 0", lambda e: e.decode(np.zeros((1, 0), e.word), -1), ("K", "-1")),
    ("x", lambda e: e.multiply(np.ones(3), *GOOD), ("x must be", "float64")),
    ("x's exponent", lambda e: e.multiply(ones(e), GOOD[0], GOOD[1] + 300), ("(0, 0)", "300")),
]


def ones(encoding: Encoding) -> np.ndarray:
    """Activations of an encoding."""
    return np.ones(3, np.int32 if encoding.fixed else np.float32)


@pytest.mark.parametrize("encoding", ALL, ids=list(ENCODINGS))
@pytest.mark.parametrize(("name", "use", "words"), BAD, ids=[b[0] for b in BAD])
def test_refusals(name: str, use: Use, words: tuple[str, ...], encoding: Encoding) -> None:
    """The error names the encoding, the element and the value."""
    failure(lambda: use(encoding), RequestError, encoding.name, *words)


@pytest.mark.parametrize(
    ("name", "word"), [("pot8", 0x20), ("pot8", 0xC3), ("pot16", 0x8001), ("fxpot", 0x40000000)]
)
def test_stray_bits(name: str, word: int) -> None:
    """Bits that no weight has: codes of something else, which a kernel would read as it likes."""
    codes = np.zeros((2, 3), ENCODINGS[name].word)
    codes[1, 2] = word
    failure(lambda: ENCODINGS[name].decode(codes, 3), RequestError, name, "(1, 2)", f"{word:#x}")


def test_padding() -> None:
    """The last nibble of an odd K is 0."""
    codes = np.array([[0x00, 0x10]], np.uint8)
    failure(lambda: ENCODINGS["pot4"].decode(codes, 3), RequestError, "(0, 1)", "padding")
    assert ENCODINGS["pot4"].decode(codes, 4)[1].tolist() == [[0, 0, 0, 1]]
