"""Rounding weights of any size: never worse than zeros, and without a word from numpy."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import failure
from scale_numbers import largest_weight

import sterna.ops as ops
from sterna import formats
from sterna.errors import NonFiniteError, SternaError

GROUPS = [
    f"{name}:g{k}" for name in formats.names() for k in (32, 64) if formats.known(f"{name}:g{k}")
]
NAMES = [*formats.names(), *GROUPS]
TINY = 2.0**-149  # the smallest float32: what a scale may be instead of 0


def scales_of(name: str) -> list[str | None]:
    f = formats.get(name)
    return ["tensor", "row"] if f.scaled and not f.scales.group else [None]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_no_worse_than_zeros(name: str) -> None:
    """At every size; of zeros, all formats but rows of powers give zeros."""
    w = np.random.default_rng(3).standard_normal((6, 512)).astype(np.float32)
    w[1, 300:] = 0
    w[2] = 0
    for exponent in [*np.arange(-46, -37, 0.5), *np.arange(-37, 4.1, 2.06)]:
        sized = (w.astype(np.float64) * 10.0**exponent).astype(np.float32)
        for scale in scales_of(name):
            real = ops.dequantize(ops.quantize(sized, name, scale)).astype(np.float64)
            assert np.isfinite(real).all()
            error = np.linalg.norm(real - sized, axis=1)
            size = np.linalg.norm(sized.astype(np.float64), axis=1)
            if scale == "tensor":  # a row of zeros has the others' scale
                error, size = np.linalg.norm(error), np.linalg.norm(size)
            assert (error <= size * (1 + 1e-6) + 512 * TINY).all(), exponent


@pytest.mark.parametrize("name", ["i1", "i2p", "i2", "i4", "i8", "pot4", "pot8"])
def test_size_does_not_matter(name: str) -> None:
    """Where scales are float32, weights 2^-60 times as large become levels that are the same."""
    w = np.random.default_rng(4).standard_normal((5, 96)).astype(np.float32)
    levels, scale = ops.unpack(ops.quantize(w, name))
    small, small_scale = ops.unpack(ops.quantize(np.ldexp(w, -60), name))
    np.testing.assert_array_equal(small, levels)
    np.testing.assert_array_equal(small_scale, np.ldexp(scale, -60))


@pytest.mark.parametrize("name", ["i1", "q1_0", "i1:g32", "i2p", "pot4:g32"])
def test_zeros_where_levels_have_none(name: str) -> None:
    """Their scale is 0, of a row and of a group."""
    np.testing.assert_array_equal(ops.dequantize(ops.quantize(np.zeros((3, 256)), name)), 0)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", NAMES)
def test_the_largest_and_the_smallest(name: str) -> None:
    """All sizes within a block, to the ends of float32: finite, or an error with a name."""
    rng = np.random.default_rng(5)
    small = rng.choice(np.array([0, 1e-45, -1e-40, 1e-39, -1e-38, 1e-37], np.float32), (3, 512))
    assert np.isfinite(ops.dequantize(ops.quantize(small, name))).all()
    large = rng.choice(np.array([3e38, -3e38, 1, 0, 1e30], np.float32), (3, 512))
    f = formats.get(name)
    if name in ("f16", "fp8", "pot8") or (f.scales.group and largest_weight(f) < 3e38):
        failure(lambda: ops.quantize(large, name), SternaError, name.split(":")[0])
    else:
        assert np.isfinite(ops.dequantize(ops.quantize(large, name))).all()


@pytest.mark.parametrize("name", [n for n in NAMES if formats.get(n).integer])
def test_large_activations(name: str) -> None:
    """A sum is near the exact one, or an error names the format: never inf or NaN."""
    rng = np.random.default_rng(6)
    weight = ops.quantize(rng.standard_normal((16, 512)).astype(np.float32), name)
    real = ops.dequantize(weight).astype(np.float64)
    signs = rng.choice([-1, 1], 512)
    refused = 0
    for exponent in range(30, 39):
        x = (signs * 10.0**exponent).astype(np.float32)
        try:
            y = ops.linear(x, weight)
        except NonFiniteError:
            refused += 1
            failure(lambda x=x: ops.linear(x, weight), NonFiniteError, f"{name}: sums must")
            continue
        assert np.isfinite(y).all()
        np.testing.assert_allclose(y, real @ x.astype(np.float64), rtol=1e-3, atol=10.0**exponent)
    assert refused < 6  # 1e34, where K-quants have products of scales that are too large


def test_large_activations_are_refused_where_sums_overflow() -> None:
    """Sums of rows as of groups; a float format says infinity."""
    x = np.full(512, 1e38, np.float32)
    w = np.ones((2, 512), np.float32)
    for name in ("i8", "i2", "q4_0", "q4_1", "q6_k"):
        failure(lambda name=name: ops.linear(x, ops.quantize(w, name)), NonFiniteError, name)
    assert np.isinf(ops.linear(x, ops.quantize(w, "f32"))).all()


@pytest.mark.parametrize("name", ["tq1_0", "tq2_0", "q4_0", "i8"])
def test_how_many_activations_share_a_scale(name: str) -> None:
    """The docstring of `ops.linear` has it: 256, 32, or a row."""
    span = {"tq1_0": 256, "tq2_0": 256, "q4_0": 32, "i8": 512}[name]
    weight = ops.quantize(np.eye(512, dtype=np.float32)[1:], name)  # row i reads x[i + 1]
    x = np.ones(512, np.float32)
    x[0] = 1e6  # what shares its scale is rounded to 0
    zeros = ops.linear(x, weight) == 0
    assert zeros[: span - 1].all()
    assert not zeros[span - 1 :].any()
