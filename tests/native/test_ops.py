"""sterna.ops: every format on every runnable instruction set, bit for bit.

The chain of trust: each format's numpy reference defines the result, the scalar kernels equal it,
and every other instruction set equals the scalar kernels. Both steps compare bits, not values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from helpers import FORMATS, INTEGER, ISAS, LEVELS, POWERS, assert_same_bits, failure, powers
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import reference_linear

import sterna.ops as ops
from sterna import _native, formats
from sterna.errors import NonFiniteError, RequestError
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
        for isa in [*ISAS, None]:  # None: the default, or the one that STERNA_ISA forces
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
    for isa in [*ISAS, None]:
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


PLAIN = np.ones((4, 8), np.int8)
ONES = np.ones((2, 8), np.float32)


def refused(call: Callable[[], object], *words: str) -> None:
    """The caller's error, with the words in its message."""
    failure(call, RequestError, *words)


def test_arguments_that_are_refused() -> None:
    """Each names the argument and the value that broke the rule."""
    packed = ops.pack(PLAIN, 1.0, format="i2")
    refused(lambda: ops.pack(PLAIN, 1.0, format="i3"), "i3")
    refused(lambda: ops.pack(2 * PLAIN, 1.0, format="i2"), "i2", "2")
    refused(lambda: ops.pack(2 * PLAIN, 1.0, format="i2p"), "i2p", "2")
    refused(lambda: ops.pack(PLAIN[0], 1.0, format="i2"), "(8,)")
    refused(lambda: ops.pack(PLAIN, np.ones(3, np.float32), format="i2"), "scale", "3")
    refused(lambda: ops.pack(PLAIN, np.ones((4, 1), np.float32), format="i2"), "scale")
    refused(lambda: ops.linear(np.ones((2, 7), np.float32), packed), "7", "8")
    empty = ops.pack(PLAIN[:, :0], 1.0, format="i2")
    refused(lambda: ops.linear(np.ones((1 << 31, 0), np.float32), empty), "2^31", "2147483648")
    refused(lambda: ops.linear(np.float32(1), packed))
    refused(lambda: ops.linear(ONES, packed, threads=0), "threads", "0")
    refused(lambda: ops.linear(ONES, packed, threads=-1), "threads", "-1")
    refused(lambda: ops.linear(ONES.astype(np.complex64), packed), "complex64")
    refused(lambda: ops.quantize(ONES, "i2", scale="column"), "column")


def test_arguments_of_a_wrong_type_are_refused() -> None:
    """Each names the argument, what it must be and what it is, instead of Python's own errors."""
    packed = ops.pack(PLAIN, 1.0, format="i2")
    for wrong, kind in ((None, "NoneType"), (ONES, "ndarray"), ("i2", "str")):
        for call in (partial(ops.linear, ONES), ops.unpack, ops.dequantize):
            refused(partial(call, wrong), "packed", "PackedWeight", kind)
    for name, value in (
        ("isa", []), ("isa", 5), ("threads", 1.5), ("threads", True), ("deterministic", None),
        ("deterministic", 1), ("deterministic", "no"), ("deterministic", np.ones(2)),
    ):  # fmt: skip
        refused(partial(ops.linear, ONES, packed, **{name: value}), name, repr(value))
    refused(partial(ops.quantize, ONES, "i2", np.ones(2)), "scale")
    for scale in (1j, "a", object(), {}):
        refused(partial(ops.pack, PLAIN, scale, format="i2"), "scale", repr(scale))
    assert_same_bits(ops.linear(ONES, packed, threads=np.int64(1)), ops.linear(ONES, packed))


def test_a_packed_weight_of_ones_own_making_is_checked() -> None:
    """Arrays that are not those of its format, M and K."""
    packed, grouped = (ops.quantize(np.ones((64, 64)), name) for name in ("i2", "q4_0"))
    for change in (
        {"codes": None}, {"scale": None}, {"M": "64"}, {"M": -1}, {"K": 128},
        {"codes": packed.codes[:, ::2]},
        {"codes": packed.codes[0]}, {"scale": np.ones(3, np.float32)},
    ):  # fmt: skip
        refused(partial(ops.linear, np.ones((2, 64)), replace(packed, **change)), "packed", "i2")
    wrong = replace(grouped, scale=packed.scale)
    refused(lambda: ops.unpack(wrong), "packed", "q4_0", "float32 ()")


@pytest.mark.parametrize("name", ["i2", "q4_0", "q4_k"])
def test_its_size_and_scales_are_checked(name: str) -> None:
    """`scales` and `nbytes` check their fields, and codes must not need a conversion."""
    packed = ops.quantize(np.ones((64, 256)), name)
    for change in ({"codes": packed.codes.astype(np.float32)}, {"scale": "x"}, {"M": "64"}):
        refused(lambda change=change: ops.unpack(replace(packed, **change)), "packed", name)
    refused(lambda: replace(packed, codes=None).nbytes, "packed", name, "NoneType")
    for scale in ("x", None) if name == "i2" else (None, packed.scale[0], packed.scale[:, :3]):
        if name != "i2" or scale == "x":
            wrong = replace(packed, scale=scale)
            with pytest.raises(RequestError, match="packed"):
                wrong.scales  # noqa: B018


def test_a_packed_weight_equals_itself_alone() -> None:
    """Arrays are not compared; it may be a key."""
    packed, other = (ops.quantize(PLAIN, "i2") for _ in range(2))
    assert packed == packed
    assert packed != other
    assert {packed: 1}[packed] == 1


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", INTEGER)
def test_levels_that_are_none(name: str) -> None:
    """Each names the format, the element and the value, whatever the dtype holds."""
    for value, words in ((np.nan, "is nan"), (-np.inf, "is -inf")):
        failure(
            lambda value=value: ops.pack([[1, value]], format=name),
            NonFiniteError, name, "element (0, 1)", words,
        )  # fmt: skip
    for value in (0.5, 1e300, -1e300):
        refused(
            lambda value=value: ops.pack([[1, value]], format=name),
            name, "element (0, 1)", str(value),
        )  # fmt: skip


@pytest.mark.filterwarnings("error")
def test_values_are_named_as_they_were_given() -> None:
    """Not as the float32 that they became."""
    for scale, words in ((1e39, "it is 1e+39"), ([1, np.nan, 1, 1], "element (1,) is nan")):
        failure(
            lambda scale=scale: ops.pack(PLAIN, scale, format="i2"), NonFiniteError, "i2", words
        )
    grouped = np.ones((1, 32), np.int8)
    call = partial(ops.pack, grouped, [[1e39]], format="q8_0")
    failure(call, NonFiniteError, "q8_0", "(0, 0) is 1e+39")
    packed, x = ops.pack(PLAIN, format="i2"), ONES.astype(np.float64)
    x[1, 7] = 1e39
    failure(lambda: ops.linear(x, packed), NonFiniteError, "(1, 7) is 1e+39")
    failure(lambda: ops.quantize([[3.4e38]], "bf16"), NonFiniteError, "use f32")
    failure(lambda: ops.quantize([[1e5]], "f16"), NonFiniteError, "use bf16 or f32")
    refused(lambda: ops.quantize([[1, 3.4e38]], "pot8"), "pot8", "weights", "(0, 1) is 3.4e+38")
    refused(lambda: ops.pack([[2]], format="i1"), "{-1, 1}")
    refused(lambda: ops.pack([[2]], format="i2"), "{-1, 0, 1}")
    refused(lambda: ops.quantize(PLAIN, "f32", "row"), "scale", "f32", "'row'")


@pytest.mark.filterwarnings("error")
def test_weights_too_large_for_float32() -> None:
    """The error names them, and numpy's own warning does not appear."""
    failure(lambda: ops.quantize(np.full((4, 8), 1e300), "i2"), NonFiniteError, "1e+300")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_non_finite(name: str, bad: float) -> None:
    """NaN and infinity never pass silently.

    There is no integer to quantise them to, so they are an error; float formats hand them on as
    IEEE 754 does, to the token's own outputs and to no other's.
    """
    rng = np.random.default_rng(7)
    packed, x = weights(name, 4, 8, "tensor", rng), ONES.copy()
    x[1, 3] = bad
    for isa in ISAS:
        if name in LEVELS:
            with pytest.raises(NonFiniteError, match="x"):
                ops.linear(x, packed, isa=isa)
        else:
            y = ops.linear(x, packed, isa=isa)
            assert np.isfinite(y[0]).all()
            assert not np.isfinite(y[1]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FORMATS)
def test_non_finite_weights(name: str, bad: float) -> None:
    """Weights and scales must be finite in every format."""
    w = np.random.default_rng(7).standard_normal((4, 8), np.float32)
    w[2, 5] = bad
    failure(lambda: ops.quantize(w, name), NonFiniteError)
    values = (PLAIN, bad) if name in LEVELS else (w, None)
    failure(lambda: ops.pack(*values, format=name), NonFiniteError)
