"""Levels, scales and suffixes of formats with groups that are refused, by name."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from helpers import failure
from scale_numbers import largest_weight, number_of
from test_groups import NAMES

import sterna.ops as ops
from sterna import _native, formats
from sterna.errors import NonFiniteError, RequestError


@pytest.mark.parametrize(
    ("name", "levels", "scale", "error", "words"),
    [
        ("q4_0", np.zeros((2, 40), np.int8), 1.0, RequestError, "multiple of 32"),
        ("i2:g64", np.zeros((2, 96), np.int8), 1.0, RequestError, "multiple of 64"),
        ("tq1_0", np.zeros((2, 128), np.int8), 1.0, RequestError, "multiple of 256"),
        ("q8_0", np.zeros((2, 32), np.int8), np.ones((2, 2)), RequestError, "shape () or (2, 1)"),
        ("q4_1", np.zeros((2, 32), np.int8), np.ones((2, 1)), RequestError, "(2, 1, 2)"),
        ("q4_0", np.zeros((1, 32), np.int8), [[np.nan]], NonFiniteError, "must be finite"),
        ("q4_0", np.zeros((1, 32), np.int8), [[np.inf]], NonFiniteError, "must be finite"),
        ("q4_0", np.zeros((1, 32), np.int8), [[1e6]], RequestError, "65504"),
        ("mxfp4", np.zeros((1, 32), np.int8), [[3.0]], RequestError, "2^-127"),
        ("mxfp4", np.zeros((1, 32), np.int8), [[0.0]], RequestError, "2^-127"),
        ("mxfp4", np.zeros((1, 32), np.int8), [[-1.0]], RequestError, "2^-127"),
        ("mxfp4", np.full((1, 32), 5, np.int8), 1.0, RequestError, "element (0, 0) is 5"),
        ("q4_0", np.full((1, 32), 8, np.int8), 1.0, RequestError, "element (0, 0) is 8"),
        ("q6_k", np.zeros((2, 128), np.int8), 1.0, RequestError, "multiple of 256"),
        ("q6_k", np.zeros((1, 256), np.int8), np.ones((1, 1)), RequestError, "(1, 1, 17)"),
        ("q4_k", np.zeros((1, 256), np.int8), np.full((1, 1, 2, 9), 64), RequestError, "0 to 63"),
        ("q2_k", np.zeros((1, 256), np.int8), np.full((1, 1, 2, 17), 0.5), RequestError, "whole"),
        ("q3_k", np.zeros((1, 256), np.int8), np.full((1, 1, 17), 7e4), RequestError, "65504"),
        ("q5_k", np.zeros((1, 256), np.int8), np.nan, NonFiniteError, "must be finite"),
        ("q5_k", np.full((1, 256), 32, np.int8), 1.0, RequestError, "element (0, 0) is 32"),
    ],
)  # fmt: skip
def test_bad_input(name: str, levels: np.ndarray, scale: object, error: type, words: str) -> None:
    """Each is named: the format, the rule, the value."""
    failure(lambda: ops.pack(levels, scale, format=name), error, name, words)


@pytest.mark.parametrize(
    "name",
    [
        "i2:",
        "i2:g",
        "i2:g0",
        "i2:g33",
        "i2:32",
        "i2:g-32",
        "bf16:g32",
        "q4_0:row",
        "i3:g32",
        "q4_k:g32",
    ],
)
def test_bad_suffix(name: str) -> None:
    """A suffix that says nothing, or on a format whose scales are fixed, is refused."""
    failure(lambda: formats.get(name), RequestError, name.split(":")[0])


def test_suffixes_have_one_spelling() -> None:
    """A file holds the name: i2:g032 is i2:g32. The message lists what takes groups."""
    assert formats.get("i2:g032").name == "i2:g32"
    assert ops.quantize(np.ones((2, 64)), "i2:g064").format == "i2:g64"
    message = failure(lambda: formats.get("pot8:g32"), RequestError, "for groups")
    offered = message.split("use ")[1].split(" for groups")[0].replace(" or ", ", ").split(", ")
    assert offered == [name for name in formats.names() if formats.known(f"{name}:g32")]


@pytest.mark.parametrize("scale", ["tensor", "row"])
def test_scale_suffix(scale: str) -> None:
    """i2:row and i2:tensor say where quantize finds its scale."""
    w = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    got = ops.quantize(w, f"i2:{scale}")
    expected = ops.quantize(w, "i2", scale)
    np.testing.assert_array_equal(got.codes, expected.codes)
    np.testing.assert_array_equal(got.scale, expected.scale)


def test_non_finite_activations() -> None:
    """NaN and infinity are found, wherever in a row they are."""
    packed = ops.quantize(np.ones((3, 64), np.float32), "q4_0")
    for at in (0, 63):
        for bad in (np.nan, np.inf, -np.inf):
            x = np.zeros((2, 64), np.float32)
            x[1, at] = bad
            failure(lambda x=x: ops.linear(x, packed), NonFiniteError, f"(1, {at})")


@pytest.mark.parametrize("name", NAMES)
def test_scales_that_no_half_holds(name: str) -> None:
    """Finite weights beyond the number of a scale are named as such, if there are any."""
    f = formats.get(name)
    w = np.full((2, 2 * f.scales.block), 3e9, np.float32)
    if largest_weight(f) > 3e9:
        assert np.isfinite(ops.dequantize(ops.quantize(w, name))).all()
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            failure(lambda: ops.quantize(w, name), RequestError, name, number_of(f).rule)


@pytest.mark.parametrize("layout", ["b4", "b8", "fp4", "pot4", "t5"])
def test_levels_of_halves_are_refused(layout: str) -> None:
    """Groups of these layouts start at whole numbers, so an odd zero_x2 must not come this far."""
    f = next(f for f in map(formats.get, formats.names()) if f.layout.name == layout)
    codes = np.zeros((1, f.tile_bytes(64)), np.uint8)
    lines = np.zeros((1, 2 * f.tile_rows * 2), np.uint8)

    def weight(zero_x2: int) -> _native.Weight:
        groups = (lines, 32, 32, "f16", False, 1.0)
        return _native.Weight(layout, f.tile_rows, 64, codes, None, zero_x2, groups)

    assert weight(2)
    with pytest.raises(ValueError, match="zero_x2"):
        weight(3)
