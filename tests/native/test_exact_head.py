"""The exact head has the float head's bits, and its bound holds (docs/explanation/exact-head.md).

Adversarial and random heads × instruction sets × k; the bound against exact sums; and, for every
term of the bound, a case that would break without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from exact_heads import F32, ISAS, NO_HISTORY, pack, ranked, screened
from helpers import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import quantize_activations

from sterna import _native, ops
from sterna.engine import Draw
from sterna.formats import PackedWeight, Shadow
from sterna.sampling_params import SamplingParams

HALF_ULP = 2.0**-24


def check(head: PackedWeight, x: np.ndarray, k: int, isa: str = ISAS[-1], threads: int = 1) -> int:
    """The k largest logits, ties included, are there with the float head's bits; the candidates."""
    floats = ops.linear(x, head, isa=isa, threads=threads)
    got, low, high, candidates = screened(head, x, [k] * len(x), isa, threads)
    for n in range(len(x)):
        there = got[n] != -np.inf
        assert_same_bits(got[n][there], floats[n][there])
        least = np.sort(floats[n])[-k]
        assert there[floats[n] >= least].all()
        np.testing.assert_array_equal(ranked(got[n])[:k], ranked(floats[n])[:k])
        assert there.sum() == candidates[n] >= k
        assert (low[n] <= floats[n]).all()
        assert (floats[n] <= high[n]).all()
        for temperature in (0.0, 0.8):  # the sampler decides the same
            params = SamplingParams(temperature=temperature, top_k=k, top_p=0.9, seed=5)
            draw = Draw(params.native, NO_HISTORY)
            tokens = {int(draw.sample(rows[n], 3).token) for rows in (got, floats)}
            assert len(tokens) == 1
    return sum(candidates)


# --------------------------------------------------------------------------------- heads and rows


def last_bit(rng: np.random.Generator) -> np.ndarray:
    """Rows that differ from one another in the last bit of one bf16 value."""
    w = np.repeat(rng.standard_normal((1, 96)), 200, axis=0)
    w = pack(w)
    bits = (ops.dequantize(w).view(np.uint32) >> 16).astype(np.uint16)
    bits[np.arange(200), rng.integers(0, 96, 200)] ^= 1
    return (bits.astype(np.uint32) << 16).view(F32)


def ties(rng: np.random.Generator) -> np.ndarray:
    """Each row thrice, far apart."""
    return np.tile(rng.standard_normal((70, 64)), (3, 1))


def spread(rng: np.random.Generator) -> np.ndarray:
    """Norms from 1e-30 to 1e15."""
    return rng.standard_normal((300, 48)) * 10.0 ** rng.uniform(-30, 15, (300, 1))


def outlier_column(rng: np.random.Generator) -> np.ndarray:
    """One column of a thousand times the others' size."""
    w = rng.standard_normal((260, 128))
    w[:, 17] *= 1000
    return w


def denormals(rng: np.random.Generator) -> np.ndarray:
    """Rows of zeros, of denormals, and of values whose squares are lost, among ordinary ones."""
    w = rng.standard_normal((130, 80))
    w[::5] = 0
    w[1::5] *= 1e-39
    w[2::5] *= 1e-25
    w[3::5] *= 1e-30
    return w


def common(rng: np.random.Generator) -> np.ndarray:
    """Rows that share a large part, so that their logits nearly agree."""
    return 20 * rng.standard_normal((1, 200)) + 0.01 * rng.standard_normal((500, 200))


HEADS: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "random": lambda rng: rng.standard_normal((1000, 320)),
    "equal": lambda rng: np.repeat(rng.standard_normal((1, 64)), 300, axis=0),
    "last bit": last_bit,
    "ties": ties,
    "spread": spread,
    "outlier column": outlier_column,
    "denormals": denormals,
    "zeros": lambda rng: np.zeros((90, 30)),
    "common part": common,
    "odd K": lambda rng: rng.standard_normal((257, 77)),
    "K 1": lambda rng: rng.standard_normal((65, 1)),
    "one row": lambda rng: rng.standard_normal((1, 40)),
    "heavy tails": lambda rng: rng.standard_cauchy((400, 100)),
    "positive": lambda rng: np.abs(rng.standard_normal((400, 96))),
}


def activations(rng: np.random.Generator, K: int) -> np.ndarray:
    """Rows x: ordinary, one giant element, all equal, below the quantiser's floor, and more."""
    x = rng.standard_normal((9, K))
    x[1, rng.integers(K)] = 3e4
    x[2] = 0.7
    x[3] *= 1e-7
    x[4] *= 1e-30
    x[5] = 0
    x[6] = rng.standard_cauchy(K)
    x[7] = np.exp(5 * rng.standard_normal(K))
    x[8] *= 1e-42  # denormal
    return x.astype(F32)


@pytest.mark.parametrize("k", [1, 2, 5, 40, 256, None])
@pytest.mark.parametrize("name", HEADS)
def test_the_k_largest_are_the_full_heads(name: str, k: int | None) -> None:
    """Bits of the logits, ranks and sampled tokens; None is all of the vocabulary."""
    rng = np.random.default_rng(len(name))
    head = pack(HEADS[name](rng))
    for x in np.split(activations(rng, head.K), 3):
        check(head, x, min(k or head.M, head.M))


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("isa", ISAS)
def test_every_unit_gives_the_same(isa: str, threads: int) -> None:
    """Logits, intervals and candidates, and the shadow's bytes, on every unit and thread count."""
    for name in ("random", "denormals", "odd K", "heavy tails"):
        rng = np.random.default_rng(1)
        head = pack(HEADS[name](rng))
        x = activations(rng, head.K)
        k = min(5, head.M)
        check(head, x, k, isa, threads)
        for got, expected in zip(
            screened(head, x, [k] * len(x), isa, threads),
            screened(head, x, [k] * len(x), "scalar", 1),
            strict=True,
        ):
            np.testing.assert_array_equal(got, expected)
        native = head.native()
        for a, b in zip(
            _native.shadow(native, isa, threads), _native.shadow(native, "scalar", 1), strict=True
        ):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("format", ["bf16", "f16", "f32"])
def test_every_float_format(format: str) -> None:
    """An exact head is one of the checkpoint's own floats, whichever they are."""
    rng = np.random.default_rng(3)
    head = pack(rng.standard_normal((500, 111)), format)
    check(head, activations(rng, 111)[:3], 5)


def test_what_may_overflow_is_computed() -> None:
    """A row whose logit may be infinite is never screened out, so the sampler sees it."""
    w = np.random.default_rng(0).standard_normal((128, 64)).astype(F32)
    w[100] = 3e38
    w[101] = -3e38
    head, x = pack(w), np.ones((1, 64), F32)
    got, low, high, _ = screened(head, x, [1])
    floats = ops.linear(x, head)
    assert floats[0, 100] == np.inf
    assert_same_bits(got[0, 100:102], floats[0, 100:102])
    assert (low[0, 100], high[0, 100]) == (-np.inf, np.inf)
    for rows in (got, floats):
        assert not Draw(SamplingParams().native, NO_HISTORY).sample(rows[0], 0).finite


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_activations_that_are_not_finite(bad: float) -> None:
    """They are found before they choose anything."""
    head = pack(np.ones((70, 8)))
    x = np.ones((2, 8), F32)
    x[1, 3] = bad
    with pytest.raises(FloatingPointError):
        screened(head, x, [1, 1])


def test_random_heads_leave_few_rows_open() -> None:
    """Of 20,000 Gaussian rows few stay open, with outliers in x or without, so it is fast."""
    rng = np.random.default_rng(0)
    head = pack(rng.standard_normal((20000, 512)))
    x = rng.standard_normal((4, 512)).astype(F32)
    x[2:, [3, 99]] *= 60
    assert check(head, x, 1) < 4 * 200


@settings(max_examples=80)
@given(st.data())
def test_any_head(data: st.DataObject) -> None:
    """Shapes, sizes of rows and of columns, repeated rows and k at random."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    M, K = data.draw(st.integers(1, 200)), data.draw(st.integers(1, 90))
    rows = rng.integers(0, M, M) if data.draw(st.booleans()) else np.arange(M)
    exponent = data.draw(st.sampled_from([0, 1, 6, 20]))
    w = rng.standard_normal((M, K)) * 10.0 ** rng.uniform(-exponent, exponent, (M, 1))
    w *= 10.0 ** rng.uniform(-data.draw(st.sampled_from([0, 2, 8])), 0, K)
    x = rng.standard_normal((2, K)) * 10.0 ** rng.uniform(-data.draw(st.integers(0, 12)), 4, K)
    check(pack(w[rows]), x.astype(F32), data.draw(st.integers(1, M)))


# ---------------------------------------------------------------------------------- the bound


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("format", ["bf16", "f32"])
def test_bounds_of_the_shadow(name: str, format: str) -> None:
    """error, norm and peak are above the exact values, and by little where these are not tiny."""
    head = pack(HEADS[name](np.random.default_rng(2)), format)
    shadow = Shadow.of(head, 1)
    w = ops.dequantize(head).astype(np.float64)
    levels, scale = ops.unpack(shadow.rows)
    rows = levels * scale.astype(np.float64)[:, None]  # exact: 7 + 24 bits
    missed = w - rows
    exact = [
        [math.sqrt(math.fsum(v * v for v in row)) for row in missed],
        [math.sqrt(math.fsum(v * v for v in row)) for row in rows],
        np.abs(missed).max(axis=1),
    ]
    for bound, value in zip(shadow.bounds[:, : head.M].astype(np.float64), exact, strict=True):
        assert (bound >= value).all()
        assert (bound <= np.array(value) * 1.01 + 1e-18).all()


def terms(head: PackedWeight, x: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """(c [M], the terms of E [M]) of docs/explanation/exact-head.md for a row x, in float64."""
    shadow = Shadow.of(head, 1)
    levels, scale = ops.unpack(shadow.rows)
    error, norm, peak = shadow.bounds[:, : head.M].astype(np.float64)
    remainder, shadow_products, planes = x[None].astype(F32), np.zeros(head.M, F32), []
    for _ in range(2):
        q, s = quantize_activations(remainder)
        t = 2 * (levels.astype(np.int64) @ q[0].astype(np.int64))
        shadow_products = shadow_products + t.astype(F32) * (scale * F32(0.5) * s[0])
        planes.append(q[0] * np.float64(s[0]))
        remainder = (remainder.astype(np.float64) - planes[-1]).astype(F32)
    xd = x.astype(np.float64)
    size, small = np.linalg.norm(xd), np.ones(len(x), bool)
    for _ in range(3):
        small = xd**2 <= 12 * (xd[small] ** 2).sum() / len(x)
    step_k = head.format.layout.step_k
    steps = -(-head.K // step_k) * step_k
    height = sum(float(np.linalg.norm(p)) for p in planes)
    return shadow_products, {
        "peak": peak * np.abs(xd[~small]).sum(),
        "error": error * np.linalg.norm(xd[small]),
        "planes": norm * np.linalg.norm(xd - planes[0] - planes[1]),
        "head's rounding": 1.01 * HALF_ULP * (steps + 2) * size * (error + norm),
        "rounding of products": 8 * HALF_ULP * height * norm,
        "underflow": np.full(head.M, 2.0**-100),
    }


@pytest.mark.parametrize("name", sorted(HEADS.keys() - {"zeros"}))
def test_the_bound_holds(name: str) -> None:
    """Thousands of logits, the float head's and the exact ones, lie within E of c."""
    rng = np.random.default_rng(11)
    head = pack(HEADS[name](rng)[:130])
    w = ops.dequantize(head).astype(np.float64)
    x = np.concatenate([activations(rng, head.K) for _ in range(2)])
    floats = ops.linear(x, head)
    _, low, high, _ = screened(head, x, [1] * len(x))
    for n in range(len(x)):
        c, parts = terms(head, x[n])
        e = sum(parts.values())
        products = w * x[n].astype(np.float64)  # exact: 8 + 24 bits
        exact = np.array([math.fsum(row) for row in products])
        for value in (floats[n], exact):
            assert (np.abs(value - c.astype(np.float64)) <= e).all()
            assert (low[n] <= value).all()
            assert (value <= high[n]).all()
        half = (high[n].astype(np.float64) - low[n]) / 2  # E, but for the roundings of its own
        rounding = 1e-6 * np.abs(c) + 1e-36 * np.abs(w).sum(axis=1)
        assert (np.abs(half - e) <= 1e-3 * e + rounding + 1e-30).all()


def aligned_error() -> tuple[np.ndarray, np.ndarray]:
    """x along W's rounding error: `error` is attained."""
    rng = np.random.default_rng(0)
    w = rng.standard_normal((1, 64)).astype(F32)
    head = pack(w)
    levels, scale = ops.unpack(Shadow.of(head, 1).rows)
    return w, (ops.dequantize(head) - levels * scale[:, None])[0] * 1000


def giant_element() -> tuple[np.ndarray, np.ndarray]:
    """All of x in the column that rounding has changed most: `peak` is attained."""
    w, x = aligned_error()
    return w, np.where(np.abs(x) == np.abs(x).max(), F32(1e4), F32(0))


def aligned_planes() -> tuple[np.ndarray, np.ndarray]:
    """W, exact in int8, along what the planes miss of x."""
    x = np.random.default_rng(0).uniform(-1, 1, 64).astype(F32)
    remainder = x[None]
    for _ in range(2):
        q, s = quantize_activations(remainder)
        remainder = (remainder.astype(np.float64) - q * np.float64(s[0])).astype(F32)
    return np.where(remainder > 0, F32(127), F32(-127)), x


def rounded_each_time() -> tuple[np.ndarray, np.ndarray]:
    """Sums that the float head rounds up by half an ulp at every step; W is exact in int8."""
    w = np.ones((1, 64), F32)
    w[0, 0] = 127
    x = np.full(64, F32(4.001))  # the first product is 2^26, where half an ulp is 4
    x[0] = 2.0**26 * (1 + 1e-7) / 127
    return w, x


@pytest.mark.parametrize(
    ("term", "case"),
    [
        ("error", aligned_error),
        ("peak", giant_element),
        ("planes", aligned_planes),
        ("head's rounding", rounded_each_time),
    ],
)
def test_no_term_can_go(term: str, case: Callable[[], tuple[np.ndarray, np.ndarray]]) -> None:
    """With all terms the bound holds; with half of E, or without this term, it would not."""
    w, x = case()
    head = pack(w)
    floats = ops.linear(x[None], head)[0].astype(np.float64)
    c, parts = terms(head, x)
    off = np.abs(floats - c.astype(np.float64))
    e = sum(parts.values())
    assert (off <= e).all()
    assert (off > e / 2).any()
    assert (off > e - parts[term]).any()
    _, low, high, _ = screened(head, x[None], [1])
    assert ((low[0] <= floats) & (floats <= high[0])).all()
