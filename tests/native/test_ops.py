"""sterna.ops: every format on every runnable instruction set, bit for bit.

The chain of trust: each format's numpy reference defines the result, the scalar kernels equal it,
and every other instruction set equals the scalar kernels. Both steps compare bits, not values.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import FORMATS, INTEGER, ISAS, LEVELS, POWERS, assert_same_bits, powers
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import reference_linear

import sterna.ops as ops
from sterna import _native, formats
from sterna.errors import RequestError
from sterna.formats import PackedWeight

# (M, K, N): around the tiles (48, 64 and 128 rows), the native vectors and the token blocks; 1 and
# 0 of each.
SHAPES = [
    (1, 1, 1),
    (1, 64, 2),
    (3, 5, 2),
    (64, 64, 1),
    (63, 65, 3),
    (65, 63, 4),
    (128, 4, 5),
    (129, 191, 7),
    (200, 320, 9),
    (70, 1000, 16),
    (66, 130, 33),
    (64, 128, 0),
    (5, 0, 2),
    (0, 8, 3),
]
# Values that are normal input: halves of a step, both zeros, denormals, and the largest that keep
# float sums finite.
AWKWARD = np.array([0, -0.0, 1e-45, -1e-39, 1e-34, 0.5, -0.5, 1.5, 2.5, 127, -127, 3e4], np.float32)


def weights(name: str, M: int, K: int, kind: str, rng: np.random.Generator) -> PackedWeight:
    """A packed [M, K] matrix; `kind` chooses the codes and the scale."""
    scale = rng.uniform(0.01, 2, M).astype(np.float32) if kind in ("random", "row") else 0.37
    if name in LEVELS:
        levels = LEVELS[name]
        codes = {
            "lowest": np.full((M, K), levels[0]),
            "highest": np.full((M, K), levels[-1]),
            "stripes": np.where(
                np.add.outer(np.arange(M), np.arange(K)) % 2, levels[0], levels[-1]
            ),
        }.get(kind, rng.choice(levels, (M, K)))
        return ops.pack(codes.astype(levels.dtype), scale, format=name)
    if name in POWERS:
        # Beyond these, products overflow or are denormals.
        low, high = max(formats.get(name).low, -60), min(formats.get(name).high, 100)
        ends = {"lowest": (low, low), "highest": (high, high), "stripes": (low, high)}
        values = powers(name, (M, K), rng)
        if kind in ends:
            values = np.ldexp(np.sign(values), rng.choice(ends[kind], (M, K)))
        return ops.pack(values, scale, format=name)
    values = rng.standard_normal((M, K), np.float32)
    if kind in ("lowest", "highest", "stripes"):
        values = rng.choice(AWKWARD, (M, K))
    return ops.pack(values, format=name)


def activations(N: int, K: int, kind: str, rng: np.random.Generator) -> np.ndarray:
    """float32 [N, K]; `kind` goes with that of the weights."""
    if kind == "lowest":
        return np.full((N, K), -7.25, np.float32)  # all quantise to −127
    if kind == "highest":
        return np.full((N, K), 1e-30, np.float32)  # below the floor of max|x|, 1e-5
    if kind == "stripes":
        return rng.choice(AWKWARD, (N, K))
    x = rng.standard_normal((N, K), np.float32)
    return x * np.float32(10) ** rng.integers(-3, 4, (N, 1)).astype(np.float32)


KINDS = ("random", "tensor", "lowest", "highest", "stripes")


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FORMATS)
def test_isas_equal_scalar_equals_numpy(name: str, shape: tuple[int, int, int]) -> None:
    """Every instruction set and thread count gives the bits of the numpy reference."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    for kind in KINDS:
        packed, x = weights(name, M, K, kind, rng), activations(N, K, kind, rng)
        scalar = ops.linear(x, packed, isa="scalar", threads=1)
        assert_same_bits(scalar, reference_linear(x, packed))
        for isa in ISAS:  # test_isa.py has the default, and the one that STERNA_ISA forces
            for threads in (1, 3):
                assert_same_bits(ops.linear(x, packed, isa=isa, threads=threads), scalar)


@pytest.mark.parametrize("shape", [(300, 2700, 17), (400, 70, 530), (130, 5200, 61)], ids=str)
@pytest.mark.parametrize("name", INTEGER)
def test_many_tokens(name: str, shape: tuple[int, int, int]) -> None:
    """Blocks of k, of tokens and of tiles, each with a rest, as panels cut them."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    packed, x = weights(name, M, K, "random", rng), activations(N, K, "random", rng)
    expected = reference_linear(x, packed)
    for isa in ISAS:
        for threads in (1, 2):
            assert_same_bits(ops.linear(x, packed, isa=isa, threads=threads), expected)


@pytest.mark.parametrize("name", INTEGER)
@pytest.mark.parametrize("end", [0, -1])
def test_longest_sum(name: str, end: int) -> None:
    """The largest K with every code and activation at its extreme: no accumulator overflows, with
    few tokens or with many.
    """
    K = _native.max_integer_k
    level, scale = int(LEVELS[name][end]), np.float32(0.5)
    packed = ops.pack(np.full((66, K), level, np.int16), scale, format=name)
    signs = [(-1) ** n for n in range(9)]
    x = np.stack([np.full(K, sign, np.float32) for sign in signs])  # two rows in turn
    small = ops.pack(np.full((1, 256), level, np.int16), scale, format=name)
    unit = ops.dequantize(small)[0, 0].astype(np.float64)
    expected = np.resize(reference_linear(x[:2], packed), (9, 66))
    np.testing.assert_allclose(expected, np.outer(signs, np.full(66, unit * K)), rtol=1e-6)
    for isa in ISAS:
        for N in (2, 9):
            assert_same_bits(ops.linear(x[:N], packed, isa=isa), expected[:N])
    with pytest.raises(RequestError, match="K"):
        ops.pack(np.full((1, K + 1), level, np.int16), scale, format=name)


@pytest.mark.parametrize("name", FORMATS)
def test_against_the_definition(name: str) -> None:
    """The reference itself: dequantised weights times quantised activations, in float64."""
    rng = np.random.default_rng(1)
    packed, x = weights(name, 70, 130, "random", rng), activations(9, 130, "random", rng)
    exact = x.astype(np.float64)
    if name in LEVELS:  # as BitNet's ActQuant does
        s = np.float32(127) / np.maximum(np.abs(x).max(1, keepdims=True), np.float32(1e-5))
        exact = np.rint(x * s).astype(np.float64) / s
    expected = exact @ ops.dequantize(packed).astype(np.float64).T
    # 130 float32 additions at the most, relative to the sum of the sizes of the terms.
    size = np.abs(exact) @ np.abs(ops.dequantize(packed)).astype(np.float64).T
    assert (np.abs(ops.linear(x, packed) - expected) <= 131 * 2.0**-24 * size).all()


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_the_same_in_any_batch(name: str) -> None:
    """One arithmetic for every N."""
    rng = np.random.default_rng(2)
    packed, x = weights(name, 100, 96, "random", rng), activations(21, 96, "random", rng)
    for isa in ISAS:
        whole = ops.linear(x, packed, isa=isa)
        for n in range(21):
            assert_same_bits(ops.linear(x[n], packed, isa=isa), whole[n])


def unaligned(x: np.ndarray) -> np.ndarray:
    """The values at an odd address."""
    buffer = np.zeros(x.nbytes + 1, np.uint8)
    buffer[1:] = np.frombuffer(x.tobytes(), np.uint8)
    return buffer[1:].view(x.dtype).reshape(x.shape)


def read_only(x: np.ndarray) -> np.ndarray:
    """The values, not writeable."""
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def gaps(x: np.ndarray) -> np.ndarray:
    """The values in every second row and third column of a larger array."""
    big = np.full((2 * x.shape[0], 3 * x.shape[1]), 99, x.dtype)
    big[::2, ::3] = x
    return big[::2, ::3]


def tensor(x: np.ndarray) -> Any:
    """As torch has it; the tests of a foreign machine (tests/foreign) do without it."""
    return pytest.importorskip("torch").from_numpy(x)


VIEWS: dict[str, Callable[[np.ndarray], object]] = {
    "column-major": np.asfortranarray,
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1],
    "gaps": gaps,
    "unaligned": unaligned,
    "read-only": read_only,
    "torch": lambda x: tensor(x.copy()),
    "torch strided": lambda x: tensor(x.T.copy()).T,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", FORMATS)
def test_any_array(name: str, view: str) -> None:
    """Strided, read-only, unaligned and DLPack arrays mean the same as plain ones."""
    rng = np.random.default_rng(3)
    x = activations(6, 50, "random", rng)
    if name in LEVELS:
        codes = rng.choice(LEVELS[name], (70, 50))
    else:
        codes = powers(name, (70, 50), rng) if name in POWERS else rng.standard_normal((70, 50))
    scale = rng.uniform(0.1, 1, 70).astype(np.float32) if formats.get(name).scaled else None
    plain = ops.pack(codes, scale, format=name)
    same = ops.pack(VIEWS[view](codes), scale, format=name)
    np.testing.assert_array_equal(same.codes, plain.codes)
    expected = ops.linear(x, plain)
    assert_same_bits(np.asarray(ops.linear(VIEWS[view](x), plain)), expected)


@pytest.mark.parametrize("name", FORMATS)
def test_leading_dimensions(name: str) -> None:
    """x [..., K] gives [..., M], down to a single vector and to no rows at all."""
    rng = np.random.default_rng(4)
    packed, x = weights(name, 9, 12, "random", rng), activations(24, 12, "random", rng)
    flat = ops.linear(x, packed)
    assert_same_bits(ops.linear(x.reshape(2, 3, 4, 12), packed), flat.reshape(2, 3, 4, 9))
    assert_same_bits(ops.linear(x[0], packed), flat[0])
    assert ops.linear(x.reshape(2, 3, 4, 12)[:, :0], packed).shape == (2, 0, 4, 9)


@settings(max_examples=60)
@given(
    M=st.integers(1, 90), K=st.integers(1, 90), N=st.integers(0, 20), seed=st.integers(0, 2**32 - 1)
)
@pytest.mark.parametrize("name", FORMATS)
def test_random_shapes(name: str, M: int, K: int, N: int, seed: int) -> None:
    """Hypothesis looks for a shape on which an instruction set departs from numpy."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    packed, x = weights(name, M, K, kind, rng), activations(N, K, kind, rng)
    expected = reference_linear(x, packed)
    for isa in ISAS:
        assert_same_bits(ops.linear(x, packed, isa=isa, threads=1 + seed % 4), expected)
