"""What is special to lookup-table formats; they also pass the tests of every format."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import LEVELS, LOSSY, assert_same_bits, failure
from oracle import quantize_activations, reference_linear

import sterna.ops as ops
from sterna import _native, formats
from sterna.errors import RequestError
from sterna.formats import PackedWeight

ISAS = _native.isas()
# Format -> the format of the same levels whose sums are products.
EXACT = {"tl1_1": "i2", "tl2_1": "i2", "tmac2_1": "i2", "elut4": "i2p"}
# K: hardly a multiple of 2, 3 or 6 among them; remainders 0, 16 and 32 of 48 once padded to 64;
# more blocks than fit an int16 sum.
SHAPES = [(1, 1, 1), (64, 64, 1), (65, 127, 3), (300, 191, 8), (130, 193, 9), (70, 1601, 17),
          (66, 6913, 2), (64, 24577, 1),
          # Few tokens by tables, more by products, blocks of k of 192 and a rest of them.
          (65, 190, 4), (130, 640, 5), (129, 704, 40), (70, 832, 530)]  # fmt: skip


def adversarial(N: int, K: int) -> np.ndarray:
    """Rows of activations that quantise to -127 and 127 only, the first of one sign."""
    x = np.where(np.arange(K) % (np.arange(N)[:, None] + 1) == 0, 127, -127)
    return x.astype(np.float32)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_exact_tables_equal_products(name: str, shape: tuple[int, int, int]) -> None:
    """The lossless formats have the bits of i2 (i2p), on every instruction set."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    levels = rng.choice(LEVELS[name], (M, K))
    scale = rng.uniform(0.01, 2, M).astype(np.float32)
    ours = ops.pack(levels, scale, format=name)
    theirs = ops.pack(levels, scale, format=EXACT[name])
    for x in (rng.standard_normal((N, K), np.float32), adversarial(N, K)):
        expected = ops.linear(x, theirs)
        for isa in ISAS:
            for threads in (1, 2):
                assert_same_bits(ops.linear(x, ours, isa=isa, threads=threads), expected)


@pytest.mark.parametrize("name", [*EXACT, *LOSSY, "elut5"])
def test_largest_sums_of_every_table(name: str) -> None:
    """Weights that follow the activations' signs: each partial sum is as large as it can be."""
    for K in (64, 112, 4096 + 64):
        x = adversarial(3, K)
        for row in range(3):
            signs = np.sign(x[row])
            levels = np.outer([1, -1, 1], signs) * LEVELS[name][-1]
            packed = ops.pack(levels.astype(np.int8), 1.0, format=name)
            expected = reference_linear(x, packed)
            for isa in ISAS:
                assert_same_bits(ops.linear(x, packed, isa=isa), expected)


def exact_sums(packed: PackedWeight, q: np.ndarray) -> np.ndarray:
    """Integer sums [N, M] of levels times quantised activations."""
    return q.astype(np.int64) @ ops.unpack(packed)[0].astype(np.int64).T


@pytest.mark.parametrize("K", [64, 129, 2560])
@pytest.mark.parametrize("name", LOSSY)
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


@pytest.mark.parametrize("name", LOSSY)
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


@pytest.mark.parametrize("name", [*EXACT, *LOSSY, "elut5"])
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
