"""Formats of powers of two: bytes, rounding, refusals, and sums of levels that reach 128."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import ISAS, LEVELS, POWERS, assert_same_bits, failure, powers
from oracle import reference_linear
from test_fast import fast, on_units

import sterna.ops as ops
from sterna import formats, loading
from sterna.convert import convert
from sterna.engine import Engine
from sterna.errors import NonFiniteError, RequestError
from sterna.formats.pot_encodings import ENCODINGS

NIBBLES = ["pot4", "pot4z"]


@pytest.mark.parametrize("name", NIBBLES)
def test_layout_of_nibbles(name: str) -> None:
    """Two lines of 32 rows x 4 k, byte by byte: the row 16 further in the high nibble."""
    rng, M, K = np.random.default_rng(1), 70, 130
    levels = rng.choice(LEVELS[name], (M, K))
    tiles = ops.pack(levels, format=name).codes.reshape(2, -1, 2, 64)
    size = np.frexp(np.abs(levels))[1]  # of 2^e: e + 1, of 0: 0
    nibble = (size if name == "pot4z" else size - 1) | (levels < 0) << 3
    for (m, k), expected in np.ndenumerate(nibble):
        byte = tiles[m // 64, k // 4, m % 64 // 32, 4 * (m % 16) + k % 4]
        assert byte >> m % 32 // 16 * 4 & 15 == expected
    if name == "pot4":  # the paper's E3:P2
        words = ENCODINGS["pot4"].encode(np.sign(levels), size - 1)
        assert words[0, 0] == nibble[0, 0] | nibble[0, 1] << 4


def test_layout_of_bytes() -> None:
    """pot8: a line of 64 rows for each k, of the paper's E5:P1."""
    rng = np.random.default_rng(2)
    values = np.ldexp(rng.choice((-1.0, 1.0), (70, 33)), rng.integers(0, 32, (70, 33)))
    packed = ops.pack(values, 1.0, format="pot8")
    words = ENCODINGS["pot8"].encode(np.sign(values).astype(int), np.frexp(values)[1] - 1)
    expected = np.zeros((128, 33), np.uint8)
    expected[:70] = words
    np.testing.assert_array_equal(
        packed.codes.reshape(2, 33, 64), expected.reshape(2, 64, 33).swapaxes(1, 2)
    )


@pytest.mark.parametrize("name", POWERS)
def test_round_trip(name: str) -> None:
    """Values and scales come back; so do real weights that are such products."""
    rng = np.random.default_rng(3)
    values, scale = powers(name, (70, 90), rng), rng.uniform(0.1, 9, 70).astype(np.float32)
    packed = ops.pack(values, scale, format=name)
    unpacked, scales = ops.unpack(packed)
    assert_same_bits(unpacked, values)
    assert_same_bits(scales, scale)
    assert_same_bits(ops.dequantize(packed), values * scale[:, None])


@pytest.mark.parametrize("name", [*NIBBLES, *POWERS])
@pytest.mark.parametrize("scale", ["tensor", "row"])
def test_rounding(name: str, scale: str) -> None:
    """No weight is further off than half the way to the next power, but for the smallest."""
    rng = np.random.default_rng(4)
    w = rng.standard_normal((40, 70), np.float32) * rng.uniform(0.1, 3, (40, 1))
    packed = ops.quantize(w, name, scale)
    assert packed.scale.shape == {"tensor": (), "row": (40,)}[scale]
    got = ops.dequantize(packed)
    unit = np.broadcast_to(np.reshape(packed.scale, (-1, 1)), w.shape)
    assert (np.signbit(got) == np.signbit(w))[got != 0].all()
    high = (np.abs(w) > 2 * unit) if name in NIBBLES else np.ones(w.shape, bool)
    ratio = np.abs(got[high] / w[high])
    assert ratio.max() <= 2**0.5 * 1.001
    assert ratio.min() > 0.3  # a scale may leave the outermost weights above its largest power


@pytest.mark.parametrize("n", [1, 3, 5, 16, 17, 40])
@pytest.mark.parametrize("tops", [0, 1, 5000])
def test_sums_with_and_without_128(n: int, tops: int) -> None:
    """Blocks that hold +128, which needs a second product, next to blocks that do not."""
    rng = np.random.default_rng([n, tops])
    levels = rng.choice(LEVELS["pot4"][:-1], (200, 700))
    levels.reshape(-1)[rng.integers(0, levels.size, tops)] = 128
    for scale, suffix in ((rng.uniform(1, 2, 200), ""), (0.5, ":g32"), (0.5, ":g96")):
        K = 700 if not suffix else 672
        packed = ops.pack(levels[:, :K], scale, format=f"pot4{suffix}")
        x = rng.standard_normal((n, K), np.float32)
        expected = reference_linear(x, packed)
        np.testing.assert_array_equal(ops.unpack(packed)[0], levels[:, :K])
        for isa in ISAS:
            assert_same_bits(ops.linear(x, packed, isa=isa), expected)


def test_special_activations() -> None:
    """Zeros, denormals and the largest floats give IEEE's products."""
    values = np.ldexp(np.float32(1), np.arange(32))[:, None].astype(np.float32)
    packed = ops.pack(values, 2.0**-31, format="pot8")
    x = np.array([[0.0], [-0.0], [1e-45], [-1e-40], [3e38], [1.5]], np.float32)
    expected = (x.astype(np.float64) * values.T * 2.0**-31).astype(np.float32)
    for isa in ISAS:  # a product may fall below the smallest denormal before the scale has a say
        got = ops.linear(x, packed, isa=isa)
        np.testing.assert_allclose(got, expected, rtol=0, atol=2e-45)
        assert_same_bits(got[4:], expected[4:])


@on_units(*POWERS)
def test_bf16_products(isa: str, name: str) -> None:
    """The unit's products of rounded activations are within bf16's rounding; any threads, any N."""
    rng = np.random.default_rng(6)
    for M, K, N in ((70, 90, 3), (130, 257, 40), (64, 64, 17)):
        values, scale = powers(name, (M, K), rng), rng.uniform(0.1, 9, M)
        packed = ops.pack(values, scale, format=name)
        x = rng.standard_normal((N, K), np.float32)
        w = ops.dequantize(packed).astype(np.float64)
        y = fast(isa, x, packed)
        assert (np.abs(y - x @ w.T) <= (2.0**-8 + K * 2.0**-23) * (np.abs(x) @ np.abs(w).T)).all()
        for threads in (2, 3):
            assert_same_bits(fast(isa, x, packed, threads), y)
        assert_same_bits(fast(isa, x[:2], packed), y[:2])


@pytest.mark.parametrize("head", [*NIBBLES, *POWERS])
def test_a_head_packed_so_runs(
    head: str, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Without being asked for: the head that a model was quantised with is its own."""
    convert(checkpoint("llama-96"), tmp_path / "packed", "pot4", head)
    model = loading.load(tmp_path / "packed")
    assert model.graph.head.weight.format == head
    assert np.isfinite(Engine(model, threads=1).logits([[1, 2, 3]])[0]).all()


@pytest.mark.parametrize("name", ["pot4:g32", "pot4z:g32"])
def test_a_group_of_zeros(name: str) -> None:
    """Its scale is 0, and what was unpacked can be packed again."""
    w = np.random.default_rng(7).standard_normal((3, 64)).astype(np.float32)
    w[1, :32] = 0
    packed = ops.quantize(w, name)
    repacked = ops.pack(*ops.unpack(packed), format=name)
    np.testing.assert_array_equal(repacked.codes, packed.codes)
    np.testing.assert_array_equal(repacked.scale, packed.scale)
    np.testing.assert_array_equal(ops.dequantize(packed)[1, :32], 0)


def test_large_activations_of_pot16() -> None:
    """Its levels reach 1 at most, so that products are as large as those of the weights."""
    w = np.random.default_rng(8).standard_normal((3, 8)).astype(np.float32)
    x = np.full((1, 8), 1e37, np.float32)
    expected = x.astype(np.float64) @ ops.dequantize(ops.quantize(w, "pot16")).T
    np.testing.assert_allclose(ops.linear(x, ops.quantize(w, "pot16")), expected, rtol=1e-5)


def test_refusals() -> None:
    """A value that is no power of two, out of range or not finite is named."""
    failure(lambda: ops.pack([[1, 3]], format="pot4"), RequestError, "pot4", "(0, 1) is 3")
    failure(lambda: ops.pack([[1, 0]], format="pot4"), RequestError, "pot4", "(0, 1) is 0")
    failure(lambda: ops.pack([[256]], format="pot4"), RequestError, "(0, 0) is 256")
    failure(lambda: ops.pack([[128]], format="pot4z"), RequestError, "pot4z", "is 128")
    for name, wrong in (("pot8", 0.5), ("pot8", 2.0**32), ("pot16", 0.0), ("pot16", 1.5)):
        failure(
            lambda name=name, wrong=wrong: ops.pack([[1.0, wrong]], format=name),
            RequestError, name, "power of two", "(0, 1)", "ops.quantize",
        )  # fmt: skip
    failure(lambda: ops.pack([[1.0, np.nan]], format="pot8"), NonFiniteError, "pot8", "(0, 1)")
    failure(lambda: ops.pack([[1.0]], np.inf, format="pot8"), NonFiniteError, "pot8", "scale")
    failure(lambda: ops.pack([[1.0]], 2.0**97, format="pot8"), RequestError, "pot8", "2^96")
    failure(lambda: ops.pack([[1.0]], [1.0, 2.0], format="pot8"), RequestError, "pot8", "(1,)")
    failure(lambda: formats.get("pot8:g32"), RequestError, "pot8", "groups")
