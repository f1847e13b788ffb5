"""Tables of levels: names, any levels on any unit, the nearest to real ones, and learned ones."""

from __future__ import annotations

from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, failure

from sterna import _native, formats, ops
from sterna.errors import NonFiniteError, RequestError
from sterna.formats import codec, level_tables, nf2, nf4, weighted
from sterna.formats.learned_tables import learned

RNG = np.random.default_rng(68)
#: Of both sizes: with both ends, out of order, with levels that repeat, and all but one 0.
TABLES = (
    (-128, 127, 0, 5, 5, -77, 90, 33, -33, 1, -1, 64, -64, 12, 100, -100),
    tuple(range(-120, 120, 15)),
    (0,) * 15 + (127,),
    (-8, 7, -1, 3),
    (0, 0, 0, -8),
)


@pytest.mark.parametrize("table", TABLES, ids=str)
def test_any_table_on_any_unit(table: tuple[int, ...]) -> None:
    """The levels come back, and all units have the sums of the decoded weights, to the bit."""
    name = level_tables.name_of(table)
    codes = RNG.integers(0, len(table), (70, 192))
    levels = np.array(table)[codes]
    x = RNG.standard_normal((20, 192), np.float32)
    for scales in ("", ":g64", ":row", ":tensor"):
        f = formats.get(name + scales)
        assert f.table == table
        shape = f.scales.shape(70, 192) if f.scales.group else (70,) if scales == ":row" else ()
        packed = ops.pack(levels, RNG.uniform(0.01, 0.02, shape), format=f)
        np.testing.assert_array_equal(ops.unpack(packed)[0], levels)
        w = ops.dequantize(packed)
        for n in (1, 4, 20):
            expected = ops.linear(x[:n], packed, isa="scalar")
            assert np.abs(expected - x[:n] @ w.T).max() < 0.02 * np.abs(w).max() * 192**0.5
            for isa in _native.isas():
                assert_same_bits(ops.linear(x[:n], packed, isa=isa), expected)


@pytest.mark.parametrize(("count", "rows"), [(4, 64), (16, 64)])
def test_tiles(count: int, rows: int) -> None:
    """Codes lie as those of b2 and b4, whatever the table."""
    table = tuple(int(v) for v in RNG.permutation(np.arange(-count // 2, count // 2)))
    codes = RNG.integers(0, count, (rows, 64)).astype(np.int8)
    same = (2 * codes - 3, "i2p") if count == 4 else (codes - 8, "i4")
    plain = ops.pack(same[0], 1.0, format=same[1])
    made = ops.pack(np.array(table)[codes], 1.0, format=f"{level_tables.name_of(table)}:row")
    np.testing.assert_array_equal(made.codes, plain.codes)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("lut4-", "32 hexadecimal digits"), ("lut2-0102", "8 hexadecimal digits"),
        ("lut2-01 02 030", "8 hexadecimal digits"), ("lut2-0A000000", "8 hexadecimal digits"),
        ("lut2-7f000000", "-8..7"), ("lut2-00000000", "not all be 0"),
        ("lut3-00", "must be one of"), ("Q4_K_M", "did you mean q4_k?"),
        ("lut2-f9fe0207:g48", "multiple of 32"), ("nf4:g0", "multiple of 32"),
    ],
)  # fmt: skip
def test_names_that_are_wrong(name: str, word: str) -> None:
    failure(lambda: formats.get(name), RequestError, word)


@pytest.mark.parametrize(
    ("values", "kind", "word"),
    [
        ([0.0] * 16, RequestError, "all be 0"), ([1.0] * 15, RequestError, "4 or 16 levels"),
        ([[1.0] * 4], RequestError, "4 or 16 levels"),
        ([1.0, 2.0, np.nan, 0.0], NonFiniteError, "element (2,)"),
        ([1.0, np.inf, 0.0, 0.0], NonFiniteError, "element (1,)"),
    ],
)  # fmt: skip
def test_tables_that_are_wrong(values: Any, kind: type[Exception], word: str) -> None:
    failure(lambda: level_tables.nearest_levels(values, "a.table"), kind, "a.table", word)


def test_nearest_levels() -> None:
    """Any order and size; an int8 table comes back if its largest value has seven bits."""
    for table in TABLES[:2]:
        levels, unit = level_tables.nearest_levels(np.array(table) * 1e-30)
        assert np.abs(np.array(levels) * unit / 1e-30 - np.array(table)).max() <= 1
    levels, unit = level_tables.nearest_levels([-3.0, -1.0, 1.0, 3.0])
    np.testing.assert_allclose(np.array(levels) * unit, [-3, -1, 1, 3])


def test_normal_floats() -> None:
    """nf2 is nf4's construction (QLoRA, appendix E), and both are of quantiles."""
    quantile, last = NormalDist().inv_cdf, 0.9677083
    of_two = [-1.0, 0.0, quantile((last + 0.5) / 2) / quantile(last), 1.0]
    np.testing.assert_allclose(nf2.VALUES, of_two, atol=1e-12)
    above = [quantile(p) / quantile(last) for p in np.linspace(last, 0.5, 9)[:-1]]
    np.testing.assert_allclose(nf4.VALUES[8:], above[::-1], atol=1e-6)


@pytest.mark.parametrize("name", ["nf4", "nf2:g32", "fp4:row"])
@pytest.mark.parametrize("weighs", [False, True])
def test_learned(name: str, weighs: bool) -> None:
    """Less error than the format's own table, on weights of another shape; and with threads the
    same."""
    w = (RNG.standard_t(3, (64, 256)) + 0.5 * RNG.choice([-1, 1], (64, 256))).astype(np.float32)
    squares = RNG.uniform(0.1, 10, 256).astype(np.float32) if weighs else None
    base = formats.get(name)
    assert isinstance(base, level_tables.Table)
    made = learned(base, w, squares)
    assert made.scales == base.scales
    assert made.name.startswith(f"{base.layout.name}-")
    assert learned(base, w, squares, threads=2) == made

    def error(f: formats.Format) -> float:
        real = codec.real_values(f, *weighted.rounded(f, w, squares=squares))
        groups = np.square(w.reshape(-1, base.scales.group or 256))
        by_size = groups / groups.mean(axis=1, keepdims=True) + 1
        e = by_size.reshape(w.shape) if squares is None else squares
        return float((np.square(real - w) * e).sum())

    assert error(made) < error(base)


def test_learned_of_zeros() -> None:
    """Nothing is learned of nothing."""
    base = formats.get("nf4")
    assert isinstance(base, level_tables.Table)
    assert learned(base, np.zeros((3, 64), np.float32)) == base
