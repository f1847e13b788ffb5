"""Arguments of `ops` that are refused: types, shapes, levels, values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from helpers import FORMATS, INTEGER, ISAS, LEVELS, assert_same_bits, failure
from test_ops import weights

import sterna.ops as ops
from sterna.errors import NonFiniteError, RequestError

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
