"""The lookup-table formats, registered for these tests alone."""

from __future__ import annotations

import json
from pathlib import Path

import digests
import numpy as np
import pytest
from digests import Case
from helpers import assert_same_bits, failure
from lookup_tiles import LOOKUPS, lookup_tiles
from oracle import quantize_activations, reference_linear
from rounded_tables import rounded_tables

import sterna.ops as ops
from sterna import LLM, _native, formats
from sterna.errors import RequestError
from sterna.evaluate.compare import compare
from sterna.formats import PackedWeight
from sterna_papers import lookup
from sterna_papers.lookup import EXACT, FORMATS, ROUNDED

ISAS = _native.isas()
LEVELS = {f.name: f.codebook.array for f in FORMATS if f.codebook is not None}
#: Exact formats that have a counterpart whose sums are products.
PRODUCTS = {name: other for name, other in EXACT.items() if other is not None}
# K: hardly a multiple of 2, 3 or 6 among them; remainders 0, 16 and 32 of 48 once padded to 64;
# more blocks than fit an int16 sum.
SHAPES = [(1, 1, 1), (64, 64, 1), (65, 127, 3), (300, 191, 8), (130, 193, 9), (70, 1601, 17),
          (66, 6913, 2), (64, 24577, 1),
          # Few tokens by tables, more by products, blocks of k of 192 and a rest of them.
          (65, 190, 4), (130, 640, 5), (129, 704, 40), (70, 832, 530)]  # fmt: skip
TEXT = Path(__file__).read_text(encoding="utf-8")[:1500]


@pytest.fixture(autouse=True)
def _registered(no_lookup_formats: None) -> None:
    lookup.register()


def test_the_formats_are_known_once_registered() -> None:
    assert set(LEVELS) == {*EXACT, *ROUNDED} == set(LOOKUPS)
    assert set(LEVELS) <= set(formats.names())
    lookup.register()  # again
    assert len(formats.names()) == len(set(formats.names()))


def adversarial(N: int, K: int) -> np.ndarray:
    """Rows of activations that quantise to -127 and 127 only, the first of one sign."""
    x = np.where(np.arange(K) % (np.arange(N)[:, None] + 1) == 0, 127, -127)
    return x.astype(np.float32)


def reference(x: np.ndarray, packed: PackedWeight) -> np.ndarray:
    """The bits that every unit gives."""
    if packed.format.name in ROUNDED:
        return rounded_tables(x, packed)
    return reference_linear(x, packed)


@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (70, 130), (129, 63)], ids=str)
@pytest.mark.parametrize("name", LEVELS)
def test_layout(name: str, shape: tuple[int, int]) -> None:
    """Packed bytes are those of the definition."""
    rng, f = np.random.default_rng(8), formats.get(name)
    assert f.codebook is not None
    levels = rng.choice(LEVELS[name], shape)
    codes = (levels.astype(int) + f.codebook.offset) // f.codebook.step
    packed = ops.pack(levels, 1.0, format=name)
    np.testing.assert_array_equal(packed.codes, lookup_tiles(name, codes.astype(np.uint8)))
    np.testing.assert_array_equal(ops.unpack(packed)[0], levels)


@pytest.mark.parametrize("max_code", [1, 2, 3])
def test_codes_above_the_greatest(max_code: int) -> None:
    """One code of two planes is found wherever it is, among any number of bytes."""
    for n, at in ((64, 0), (64, 63), (7, 6), (13, 9)):
        for code in range(4):
            for field in range(4):
                others = np.full(n, 0x0F, np.uint8)  # code 1
                others[at] &= ~np.uint8(0x11 << field)
                others[at] |= np.uint8((code >> 1) << (field + 4) | (code & 1) << field)
                assert _native.codes_valid("tmac2_1", others, max_code, 1) == (code <= max_code)


@pytest.mark.parametrize("N", [1, 3, 9, 20])
@pytest.mark.parametrize("name", LEVELS)
def test_every_unit_has_the_bits_of_the_reference(name: str, N: int) -> None:
    rng = np.random.default_rng(N)
    packed = ops.pack(rng.choice(LEVELS[name], (100, 190)), 0.3, format=name)
    x = rng.standard_normal((N, 190), np.float32)
    expected = reference(x, packed)
    for isa in ISAS:
        for threads in (1, 2):
            assert_same_bits(ops.linear(x, packed, isa=isa, threads=threads), expected)


@pytest.mark.parametrize("name", LEVELS)
def test_models_have_the_committed_logits(name: str) -> None:
    """As in tests/models/test_digests.py, on each unit that runs here."""
    committed = json.loads((Path(__file__).parent / "lookup_digests.json").read_text())
    expected = committed[f"format {name}"]
    case = Case("format", name)
    for kv, by_isa in digests.digests(case, dict.fromkeys(case.kv_dtypes, ISAS)).items():
        assert by_isa == dict.fromkeys(by_isa, expected[kv])


@pytest.mark.parametrize("name", ["tl1_0", "tl2_0", "tl2_1"])
def test_what_rounded_tables_cost(name: str) -> None:
    """Little, and not nothing; exact tables cost nothing."""
    nano = LLM("nano", threads=1)
    result = compare(nano, LLM("nano", format=name, threads=1), [TEXT])
    if name in EXACT:
        assert result.identical
        return
    assert not result.identical
    assert 0 < result.kl_figures()["mean"] < 0.005
    assert 0.9 < result.top1_agreement < 1
    assert result.b.perplexity == pytest.approx(result.a.perplexity, rel=0.02)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", PRODUCTS)
def test_exact_tables_equal_products(name: str, shape: tuple[int, int, int]) -> None:
    """The lossless formats have the bits of i2 (i2p), on every instruction set."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    levels = rng.choice(LEVELS[name], (M, K))
    scale = rng.uniform(0.01, 2, M).astype(np.float32)
    ours = ops.pack(levels, scale, format=name)
    theirs = ops.pack(levels, scale, format=PRODUCTS[name])
    for x in (rng.standard_normal((N, K), np.float32), adversarial(N, K)):
        expected = ops.linear(x, theirs)
        for isa in ISAS:
            for threads in (1, 2):
                assert_same_bits(ops.linear(x, ours, isa=isa, threads=threads), expected)


@pytest.mark.parametrize("name", LEVELS)
def test_largest_sums_of_every_table(name: str) -> None:
    """Weights that follow the activations' signs: each partial sum is as large as it can be."""
    for K in (64, 112, 4096 + 64):
        x = adversarial(3, K)
        for row in range(3):
            signs = np.sign(x[row])
            levels = np.outer([1, -1, 1], signs) * LEVELS[name][-1]
            packed = ops.pack(levels.astype(np.int8), 1.0, format=name)
            expected = reference(x, packed)
            for isa in ISAS:
                assert_same_bits(ops.linear(x, packed, isa=isa), expected)


def exact_sums(packed: PackedWeight, q: np.ndarray) -> np.ndarray:
    """Integer sums [N, M] of levels times quantised activations."""
    return q.astype(np.int64) @ ops.unpack(packed)[0].astype(np.int64).T


@pytest.mark.parametrize("K", [64, 129, 2560])
@pytest.mark.parametrize("name", ROUNDED)
def test_error_of_rounded_tables(name: str, K: int) -> None:
    """At most half a step of the table for each lookup, and not zero: or it would be lossless."""
    rng = np.random.default_rng(K)
    packed = ops.pack(rng.integers(-1, 2, (100, K), np.int8), 1.0, format=name)
    x = rng.standard_normal((7, K), np.float32)
    q, s_x = quantize_activations(x)
    padded = -(-K // 64) * 64
    # The coarsest step is that of the largest sum; planes count 1 and 2 of half a level each.
    size, lookups = {
        "tl1_0": (2 * 127, padded / 2),
        "tl2_0": (3 * 127, padded / 48 * 16 + 16),
        "tmac2_0": (4 * 127, padded / 4 * 3 / 2),
    }[name]
    got = ops.linear(x, packed) / s_x[:, None]
    error = np.abs(got - exact_sums(packed, q))
    assert (error <= (size / 127 / 2 * lookups) * (1 + 1e-5)).all()
    assert error.max() > 0
    spread = np.sqrt((exact_sums(packed, q).astype(float) ** 2).mean())
    assert np.sqrt((error**2).mean()) < 0.05 * spread


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_tables_of_no_activations(name: str) -> None:
    """A token of zeros has no largest sum to divide by."""
    packed = ops.pack(np.ones((5, 70), np.int8), 1.0, format=name)
    for isa in ISAS:
        assert not ops.linear(np.zeros((2, 70), np.float32), packed, isa=isa).any()


@pytest.mark.parametrize("name", ["tl2_0", "tl2_1"])
@pytest.mark.parametrize("blocks", range(1, 10))
def test_block_fitting(name: str, blocks: int) -> None:
    """Triples take what 48 divides, pairs the rest: 5 and 4 bits a code, no other padding."""
    K = 64 * blocks
    three = K // 48 * 48
    packed = ops.pack(np.zeros((64, K), np.int8), format=name)
    assert packed.codes.nbytes == 64 * (three // 3 * 5 + (K - three) // 2 * 4) // 8


@pytest.mark.parametrize("name", ["tl1_0", "tl1_1", "tl2_0", "tl2_1", "elut4", "elut5"])
def test_any_bytes_are_codes(name: str) -> None:
    """An index that stands for no weights means zeros: the kernels and unpack agree on it."""
    f = formats.get(name)
    rng = np.random.default_rng(3)
    codes = rng.integers(0, 256, (2, f.tile_bytes(130)), np.uint8)
    packed = PackedWeight(f, 100, 130, codes, np.float32(0.5))
    assert f.codes_valid(codes, 1)
    levels, _ = ops.unpack(packed)
    assert LEVELS[name][0] <= levels.min() <= levels.max() <= LEVELS[name][-1]
    repacked = ops.pack(levels, 0.5, format=name)
    for n in (3, 6, 20):
        x = rng.standard_normal((n, 130), np.float32)
        for isa in ISAS:
            assert_same_bits(ops.linear(x, packed, isa=isa), ops.linear(x, repacked, isa="scalar"))


@pytest.mark.parametrize("name", ["tmac2_0", "tmac2_1"])
def test_the_fourth_code_is_not_ternary(name: str) -> None:
    """Two planes have a code 3, which a file may not hold."""
    f = formats.get(name)
    packed = ops.pack(np.ones((64, 64), np.int8), format=name)
    assert f.codes_valid(packed.codes, 1)
    packed.codes[0, 77] |= 0x11
    assert not f.codes_valid(packed.codes, 1)


@pytest.mark.parametrize("name", LEVELS)
def test_no_scales_in_groups(name: str) -> None:
    """Tables are sums over all of a row's k, so groups are refused, here and at the border."""
    failure(lambda: formats.get(f"{name}:g32"), RequestError, name, "each row")
    f = formats.get(name)
    codes = np.zeros((1, f.tile_bytes(64)), np.uint8)
    lines = np.zeros((1, 2 * 64 * 2), np.uint8)
    with pytest.raises(ValueError, match="groups"):
        _native.Weight(
            f.layout.name, 64, 64, codes, None, f.zero_x2, (lines, 32, 32, "f16", False, 1.0)
        )
