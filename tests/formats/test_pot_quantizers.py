"""Rounding to powers of two: the rule exactly, the scale's search, trained latents, refusals."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, failure
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from sterna import ops
from sterna.errors import NonFiniteError, RequestError
from sterna.formats.pot_encodings import ENCODINGS
from sterna.formats.pot_methods import Quantizer, deepshift_q, denseshift, s3
from sterna.formats.power_of_two import PotLevels, check_scale, error, from_latents

NEAREST = Quantizer("nearest", 7)
QUANTIZERS = [
    NEAREST,
    Quantizer("nearest with zero", 6, "near"),
    Quantizer("nearest of pot8", 31),
    *(denseshift(T) for T in (2, 3, 4)),
    *(s3(T) for T in (2, 3, 4)),
    *(deepshift_q(bits) for bits in (2, 4, 5, 6)),
]
SCALES = ("tensor", "row", "group:16")
each = pytest.mark.parametrize("quantizer", QUANTIZERS, ids=lambda q: q.name)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    """Weights as of a model."""
    return (0.02 * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def scale_of(levels: PotLevels, i: int, k: int) -> float:
    """The scale of element (i, k)."""
    s = levels.scale
    return float(s if s.ndim == 0 else s[i] if s.ndim == 1 else s[i, k * s.shape[1] // K])


K = 48


def check_rule(w: np.ndarray, levels: PotLevels, q: Quantizer) -> None:
    """e = round(log2(|w| / s)) within 0..E and 0 where the scheme says so, in rational numbers."""
    for i, k in np.ndindex(w.shape):
        sign, e = int(levels.signs[i, k]), int(levels.exponents[i, k])
        size, s = abs(Fraction(float(w[i, k]))), Fraction(scale_of(levels, i, k))
        is_zero = size < s / 2 if q.zero == "near" else size == 0 and q.zero == "exact"
        assert (sign == 0) == is_zero
        if is_zero:
            assert e == 0
            continue
        assert sign == (-1 if w[i, k] < 0 else 1)
        # 2^(e - 1/2) <= |w| / s < 2^(e + 1/2), squared
        square = (size / s) ** 2
        assert square >= Fraction(4) ** e / 2 or e == 0
        assert square < Fraction(4) ** e * 2 or e == q.max_exponent


@each
@pytest.mark.parametrize("scale", SCALES)
def test_the_rule(quantizer: Quantizer, scale: str) -> None:
    """Every element of weights; some are 0, some subnormal, some much larger than the others."""
    w = normal(5, K)
    w[0, :4], w[1, 7], w[2, 5] = (0, 1e-40, -3e-45, 1e-10), 3, 0
    w[4] *= 1e-38
    levels = quantizer(w, scale)
    assert levels.scale.shape == {"tensor": (), "row": (5,), "group:16": (5, 3)}[scale]
    check_rule(w, levels, quantizer)
    assert levels.zeros == (2 if quantizer.zero == "none" else 0)
    assert (levels.signs.dtype, levels.exponents.dtype) == (np.int8, np.uint8)
    assert levels.scale.dtype == np.float32
    if quantizer.power_scale:
        assert (np.frexp(levels.scale)[0] == 0.5).all()


def test_bounds() -> None:
    """Neighbours of sqrt(2) among the float32, for a scale that is a power of two."""
    below = np.float32(math.sqrt(2))  # float32 rounds it down
    assert Fraction(float(below)) ** 2 < 2
    above = np.nextafter(below, np.float32(2))
    w = np.array([[8, below, above, 2 * below, 2 * above, below / 2, -above / 2]], np.float32)
    levels = deepshift_q(4)(w)
    assert levels.values().tolist() == [[8, 1, 2, 2, 4, 0.5, -1]]


finite = st.floats(width=32, allow_nan=False, allow_infinity=False)


@settings(max_examples=60)
@given(arrays(np.float32, (2, K), elements=finite), st.sampled_from(QUANTIZERS))
def test_any_floats(w: np.ndarray, quantizer: Quantizer) -> None:
    """Nothing overflows, whatever the weights."""
    for scale in SCALES:
        levels = quantizer(w, scale)
        assert np.isfinite(levels.values()).all()
        check_rule(w, levels, quantizer)
        assert error(w, levels).max <= 2 * float(np.abs(w).max()) or (w == 0).any()


@each
@pytest.mark.parametrize("scale", SCALES)
def test_powers_of_two_stay(quantizer: Quantizer, scale: str) -> None:
    """A rounded value is rounded to itself."""
    w = quantizer(normal(6, K, seed=1), scale).values()
    requantized = quantizer(w, scale)
    np.testing.assert_array_equal(requantized.values(), w)
    assert error(w, requantized) == (0, 0, math.inf)


@each
def test_the_search(quantizer: Quantizer) -> None:
    """Near the least error that a fine search finds, for rows of any size by themselves."""
    w = normal(8, 256, seed=2) * np.geomspace(1e-6, 1e6, 8, dtype=np.float32)[:, None]
    w[3, :2] *= 20  # a row that is better clipped, or not
    got = quantizer(w, "row")
    tops = np.abs(w).max(axis=1, keepdims=True).astype(np.float64) * 1.5
    least = np.full(8, np.inf)
    for octaves in np.arange(0, 9, 1 / 64):
        s = tops * 2.0 ** (-octaves - quantizer.max_exponent)
        if quantizer.power_scale:
            s = 2.0 ** np.floor(np.log2(s))
        e = np.clip(np.rint(np.log2(np.abs(w) / s)), 0, quantizer.max_exponent)
        made = np.sign(w) * s * 2**e
        if quantizer.zero == "near":
            made[np.abs(w) < s / 2] = 0
        least = np.minimum(least, ((made - w) ** 2).sum(axis=1))
    squares = ((got.values().astype(np.float64) - w) ** 2).sum(axis=1)
    # Rows of 256 are few weights: the error is a rough function of the scale.
    assert (squares <= 1.15 * least).all(), squares / least
    assert np.mean(squares / least) <= 1.05


def test_more_levels_lose_less() -> None:
    """Bits of exponents and scales for fewer weights; figures are near those of normal weights."""
    w = normal(64, 512, seed=3)
    lost = {(q.name, s): error(w, q(w, s)).relative_rms for q in QUANTIZERS for s in SCALES}
    for s in SCALES:
        assert lost["denseshift2", s] > lost["denseshift3", s] > lost["denseshift4", s]
        assert lost["s3-2", s] > lost["s3-3", s] > lost["s3-4", s]
        # Normal weights and bounds at sqrt(2) octaves lose a fifth, wherever the scale is.
        assert lost["nearest of pot8", s] < lost["nearest", s] * 1.01 < 0.21
    for q in QUANTIZERS:
        assert lost[q.name, "tensor"] >= lost[q.name, "row"] >= lost[q.name, "group:16"]


def test_error() -> None:
    """Signal, noise and their ratio."""
    w = np.array([[4.0, 3.0]], np.float32)
    levels = PotLevels(np.ones((1, 2), np.int8), np.array([[2, 1]], np.uint8), np.float32(1))
    got = error(w, levels)
    assert got == pytest.approx((0.2, 1.0, 20 * math.log10(5)))
    nothing = error(np.zeros((1, 2)), levels)
    assert (nothing.relative_rms, nothing.max, nothing.snr_db) == (math.inf, 4, -math.inf)
    failure(lambda: error(w[:, :1], levels), RequestError, "(1, 1)", "(1, 2)")


def test_zeros() -> None:
    """No zero: +2^0 times the scale, and how many there were; a row of them is next to nothing."""
    w = np.array([[0, -0.0, 1, -8], [0, 0, 0, 0]], np.float32)
    levels = denseshift(3)(w, "row")
    assert levels.zeros == 6
    assert levels.values()[0].tolist() == [1, 1, 1, -8]
    assert 0 < levels.values()[1].max() < 1e-43
    assert s3(4)(w, "row").values().tolist() == w.tolist()
    for shape in ((0, 4), (4, 0), (0, 0)):
        for scale in ("tensor", "row"):
            assert s3(4)(np.zeros(shape), scale).values().shape == shape


def test_levels_pass_through_an_encoding() -> None:
    got = NEAREST(normal(3, K))
    codes = ENCODINGS["pot4"].encode(got.signs, got.exponents)
    signs, exponents = ENCODINGS["pot4"].decode(codes, K)
    assert_same_bits(PotLevels(signs, exponents, got.scale).values(), got.values())


def test_latents() -> None:
    """Equations 1 to 5, all signs of all latents; 1(0) is 1."""
    columns = list(product((-0.5, 0.0), repeat=5))
    sparse, sign, w1, w2, w3 = (np.array([c], np.float32) for c in zip(*columns, strict=True))
    one = [(np.array(c) >= 0).astype(int) for c in columns]
    shifts = [b3 * b2 * b1 + b3 * b2 + b3 for _, _, b1, b2, b3 in one]  # equation 4
    dense = [(2 * b[1] - 1) * 2**shift for b, shift in zip(one, shifts, strict=True)]
    got = from_latents(sign, [w1, w2, w3])
    assert got.values().tolist() == [dense]
    assert set(dense) == {s * 2**e for s in (-1, 1) for e in range(4)}  # equation 5
    got = from_latents(sign, [w1, w2, w3], sparse, np.float32([0.25]))
    assert got.values().tolist() == [[0.25 * b[0] * d for b, d in zip(one, dense, strict=True)]]


W = np.ones((2, 4), np.float32)
BAD: list[tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = [
    (lambda: denseshift(3)(with_value(np.nan)), NonFiniteError, ("denseshift3", "(1, 2)", "nan")),
    (lambda: NEAREST(with_value(np.inf)), NonFiniteError, ("nearest", "(1, 2)", "inf")),
    (lambda: s3(2)(with_value(1e300)), NonFiniteError, ("s3-2", "(1, 2)", "1e+300")),
    (lambda: s3(2)(W[0]), RequestError, ("[M, K]", "(4,)")),
    (lambda: s3(2)(W > 0), RequestError, ("numbers", "bool")),
    (lambda: denseshift(5), RequestError, ("T", "(2, 3, 4)", "5")),
    (lambda: s3(True), RequestError, ("T", "True")),
    (lambda: deepshift_q(8), RequestError, ("bits", "8")),
    (lambda: NEAREST(W, "column"), RequestError, ("tensor, row or group:N", "column")),
    (lambda: NEAREST(W, "group:0"), RequestError, ("group:0",)),
    (lambda: NEAREST(W, "group:3"), RequestError, ("divide K=4", "group:3")),
    (lambda: from_latents(W, [W[:1]]), RequestError, ("w_1", "(2, 4)", "(1, 4)")),
    (lambda: from_latents(W, [W, with_value(np.nan)]), NonFiniteError, ("w_2", "(1, 2)")),
    (lambda: from_latents(W, [W], W[0]), RequestError, ("w_sparse",)),
    (lambda: from_latents(W, [W] * 256), RequestError, ("at most 255", "256")),
    (lambda: check_scale([1, 0], 2, 4, "x"), RequestError, ("but element (1,) is 0",)),
    (lambda: check_scale([1, -2], 2, 4, "x"), RequestError, ("some are negative", "(1,)", "-2")),
    (lambda: check_scale(0.0, 2, 4, "x"), RequestError, ("positive", "()", "0.0")),
    (lambda: check_scale([1, np.nan], 2, 4, "x"), NonFiniteError, ("x", "(1,)", "nan")),
    (lambda: check_scale(1e300, 2, 4, "x"), NonFiniteError, ("inf",)),
    (lambda: check_scale(np.ones((2, 3)), 2, 4, "x"), RequestError, ("K=4", "(2, 3)")),
    (lambda: check_scale("one", 2, 4, "x"), RequestError, ("numeric",)),
    (lambda: levels_of(signs=2), RequestError, ("-1, 0 or 1", "(0, 0)", "2")),
    (lambda: levels_of(dtype=np.int16), RequestError, ("int8", "int16")),
    (lambda: levels_of(K=3), RequestError, ("(2, 4)", "(2, 3)")),
    (lambda: levels_of(scale=-1), RequestError, ("positive", "negate")),
    (lambda: levels_of(exponent=130).levels(), RequestError, ("(0, 0)", "130")),
]


def with_value(value: float) -> np.ndarray:
    """W with a value at (1, 2)."""
    w = W.astype(np.float64)
    w[1, 2] = value
    return w


def levels_of(
    signs: int = 1, dtype: Any = np.int8, K: int = 4, scale: float = 1, exponent: int = 0
) -> PotLevels:
    """PotLevels of one value."""
    exponents = np.full((2, K), exponent, np.uint8)
    return PotLevels(np.full((2, 4), signs, dtype), exponents, np.float32(scale))


@pytest.mark.parametrize(("call", "kind", "words"), BAD)
def test_refusals(call: Callable[[], Any], kind: Any, words: tuple[str, ...]) -> None:
    """The error names the element and the value."""
    failure(call, kind, *words)


@pytest.mark.parametrize("name", ["pot4", "pot4z", "pot8", "pot16", "pot4:g32"])
def test_matrices_of_nothing(name: str) -> None:
    """Without rows there are no outputs, and without K they are zeros."""
    for M, K in ((0, 64), (3, 0), (0, 0)):
        packed = ops.quantize(np.ones((M, K), np.float32), name)
        np.testing.assert_array_equal(
            ops.linear(np.ones((2, K), np.float32), packed), np.zeros((2, M), np.float32)
        )
