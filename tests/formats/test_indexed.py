"""iq1_s … iq3_s: indices of published tables, exact on every unit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits, failure
from oracle import reference_linear

from sterna import formats, ops
from sterna.errors import RequestError
from sterna.formats import Format, PackedWeight
from sterna.formats.indexed import Indexed
from sterna.formats.scales.odd import OddScales

NAMES = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")


def of(name: str) -> Indexed:
    found = formats.get(name)
    assert isinstance(found, Indexed)
    return found


def scales_of(f: Format, M: int, K: int, rng: np.random.Generator) -> np.ndarray:
    """Any d, and any odd numbers."""
    assert isinstance(f.scales, OddScales)
    scales = 2 * rng.integers(0, f.scales.scale_range[1] // 2 + 1, f.scales.shape(M, K)) + 1.0
    scales[..., 0] = rng.standard_normal(scales.shape[:-1]).astype(np.float16)
    return scales.astype(np.float32)


def any_levels(f: Indexed, M: int, K: int, rng: np.random.Generator) -> np.ndarray:
    """Any levels that the format holds."""
    entries = f.entries[rng.integers(0, len(f.entries), (M, K // f.width))].reshape(M, K)
    if f.name.startswith("iq1"):
        shift_k = 8 if f.name == "iq1_m" else 32
        return entries + np.repeat(rng.choice([-1, 1], (M, K // shift_k)), shift_k, axis=1)
    signs = rng.choice([-1, 1], (M, K // 8, 8))
    if f.even:
        signs[:, :, 7] = signs[:, :, :7].prod(axis=2)
    return entries * signs.reshape(M, K)


def packed_of(name: str, M: int, K: int, rng: np.random.Generator) -> PackedWeight:
    f = of(name)
    levels = any_levels(f, M, K, rng).astype(np.int8)
    packed = ops.pack(levels, scales_of(f, M, K, rng), format=name)
    np.testing.assert_array_equal(ops.unpack(packed)[0], levels)
    return packed


@pytest.mark.parametrize("name", NAMES)
def test_tables_are_ggmls(name: str) -> None:
    """The gguf package has the same entries in the same order."""
    quants = pytest.importorskip("gguf.quants", reason="needs the gguf package")
    table = getattr(quants, "IQ1_S" if name == "iq1_m" else name.upper())
    table.init_grid()
    unit = {"iq1_s": 8, "iq1_m": 8, "iq3_xxs": 0.5}.get(name, 1)
    np.testing.assert_array_equal(of(name).entries, table.grid.reshape(table.grid_shape) * unit)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_linear_equals_the_reference(name: str, isa: str) -> None:
    """The bits are numpy's, for few tokens and for many, in tiles that are full or not."""
    rng = np.random.default_rng(0)
    for M, K, n in ((1, 256, 1), (70, 768, 2), (130, 512, 3), (65, 256, 4), (130, 512, 21)):
        packed = packed_of(name, M, K, rng)
        x = 3 * rng.standard_normal((n, K)).astype(np.float32)
        assert_same_bits(ops.linear(x, packed, isa=isa), reference_linear(x, packed))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_the_greatest_sums(name: str, isa: str) -> None:
    """The entry with the largest levels, the largest scales and activations: no sum overflows."""
    f = of(name)
    largest = f.entries[np.abs(f.entries.astype(int)).sum(axis=1).argmax()]
    levels = np.tile(largest + (1 if name.startswith("iq1") else 0), (64, 512 // f.width))
    scales = np.full(f.scales.shape(64, 512), 15 if name.startswith("iq1") else 31, np.float32)
    packed = ops.pack(levels.astype(np.int8), scales, format=name)
    x = np.full((9, 512), 127, np.float32)
    for rows in (x, -x):
        for n in (1, 9):
            assert_same_bits(
                ops.linear(rows[:n], packed, isa=isa), reference_linear(rows[:n], packed)
            )


def numbers_of(f: Indexed) -> np.ndarray:
    """The number that a packed tile has for each entry of the table."""
    if not f.name.startswith("iq1"):
        return np.arange(len(f.entries))
    levels = (f.entries + 1).astype(np.int8).reshape(64, 256)
    scales = scales_of(f, 64, 256, np.random.default_rng(0))
    steps = ops.pack(levels, scales, format=f.name).codes.reshape(4, -1)
    high = 3 + (f.name == "iq1_m")
    lines = steps[:, : 64 * (8 + high)].reshape(4, 8 + high, 16, 4).transpose(3, 2, 0, 1)
    lines = lines.reshape(64, 4, 8 + high).astype(np.int64)  # [row, step, line]
    upper = (lines[..., 8:] << 8 * np.arange(high)).sum(axis=2)[..., None]
    return (lines[..., :8] | (upper >> high * np.arange(8) & 7) << 8).reshape(-1)


def test_halves_of_numbers() -> None:
    """IQ1's numbers by the definition of native/files/grids.h: what a half depends on."""
    f = of("iq1_s")
    number = numbers_of(f)
    assert sorted(number) == list(range(2048))
    halves = f.entries[np.argsort(number)].reshape(2048, 2, 4)
    number = np.arange(2048)
    rows_and_blocks, blocks_and_columns, kind = number & 127, number >> 2 & 127, number >> 9
    free = (kind == 3) & (number >> 5 & 3 == 0)
    seen: dict[tuple[int, ...], list[int]] = {}
    for half, by in enumerate((rows_and_blocks, blocks_and_columns)):
        other = np.where(kind == 3, number >> (0 if half else 7) & 1, 0)
        for i in np.flatnonzero(~free):
            key = (half, int(kind[i]), int(by[i]), int(other[i]))
            assert seen.setdefault(key, halves[i, half].tolist()) == halves[i, half].tolist()
    assert len(seen) == 2 * (3 * 128 + 2 * 96)


@pytest.mark.parametrize("name", NAMES)
def test_a_tile_by_its_definition(name: str) -> None:
    """The bit map of native/layouts/indexed.h, written out with plain indexing."""
    f, rng = of(name), np.random.default_rng(1)
    levels = any_levels(f, 64, 256, rng).astype(int)
    step_bytes = f.tile_bytes(64)
    codes = ops.pack(levels.astype(np.int8), scales_of(f, 64, 256, rng), format=name).codes
    more = {512: 1, 1024: 2, 2048: 3}.get(len(f.entries), 0)
    high = more + (name == "iq1_m")
    numbers = dict(zip(map(tuple, f.entries.tolist()), numbers_of(f).tolist(), strict=True))
    for step in range(4):
        lines = codes[0, step * step_bytes : (step + 1) * step_bytes]
        for row in range(64):
            at, signs_at = 4 * (row % 16) + row // 16, 8 // f.width * (8 + high)
            w = levels[row, 64 * step : 64 * step + 64]
            down = [0] * 8
            if name.startswith("iq1"):
                down = [int((level + 9) // 2 % 4 == 0) for level in w[::8]]
                w = w + np.where(np.repeat(down, 8) == 1, 1, -1)
            for i in range(64 // f.width):
                eight = lines[64 * (i // 8 * (8 + high)) :]
                number = sum(int(eight[64 * (8 + b) + at]) << 8 * b for b in range(high))
                bits = number >> high * (i % 8) & ((1 << high) - 1)
                entry = w[i * f.width : (i + 1) * f.width]
                entry = entry if name.startswith("iq1") else abs(entry)
                index = int(eight[64 * (i % 8) + at]) | (bits & ((1 << more) - 1)) << 8
                assert index == numbers[tuple(entry.tolist())]
                if name == "iq1_m":
                    assert bits >> more == down[i]
            if name == "iq1_s":
                byte = lines[64 * signs_at + row % 16]
                assert [byte >> (2 * (row // 16) + half) & 1 for half in (0, 1)] == down[::4]
            negative = (w < 0).reshape(8, 8)
            for s in range(0 if name.startswith("iq1") else 8):
                byte = lines[64 * (signs_at + min(s, 6 if f.even else 7)) + at]
                stored = [byte >> j & 1 for j in range(8)]
                if f.even and s == 7:
                    stored = [lines[64 * (signs_at + j) + at] >> 7 for j in range(7)]
                kept = 7 if f.even else 8
                assert stored[:kept] == negative[s, :kept].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_rounding(name: str) -> None:
    """Weights are rounded to what the format holds, with few errors where it has many bits."""
    w = np.random.default_rng(3).standard_normal((9, 512)).astype(np.float32)
    got = ops.dequantize(ops.quantize(w, name))
    most = 0.45 if name.startswith("iq3") else 0.75 if name.startswith("iq2") else 0.95
    assert np.linalg.norm(got - w) < most * np.linalg.norm(w)
    assert name not in formats.names()


@pytest.mark.parametrize("name", NAMES)
def test_levels_that_no_entry_has(name: str) -> None:
    """They are named, and so are scales that are no odd numbers."""
    f, rng = of(name), np.random.default_rng(2)
    scales = scales_of(f, 3, 512, rng)
    levels = any_levels(f, 3, 512, rng).astype(np.int8)
    wrong, known = levels.copy(), {tuple(entry) for entry in f.entries.tolist()}
    absent = next(
        entry
        for entry in itertools.product(np.unique(f.entries).tolist(), repeat=f.width)
        if entry not in known
    )
    wrong[1, 264 : 264 + f.width] = np.array(absent) + (1 if name.startswith("iq1") else 0)
    wrong[1, 264 + f.width : 272] = wrong[1, 256 + f.width : 264]
    failure(lambda: ops.pack(wrong, scales, format=name), RequestError, name, "row 1", "column 264")
    if not name.startswith("iq1") and f.even:
        wrong = levels.copy()
        wrong[2, 9] *= -1
        failure(lambda: ops.pack(wrong, scales, format=name), RequestError, "row 2", "column 8")
    for value in (2, 33, -1):
        bad = scales.copy()
        bad[1, 1, 3] = value
        failure(lambda bad=bad: ops.pack(levels, bad, format=name), RequestError, name, str(value))
    bad = scales.copy()
    bad[1, 1, 0] = np.nan
    failure(lambda: ops.pack(levels, bad, format=name), Exception, "nan")
