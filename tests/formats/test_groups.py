"""Formats with scales in groups of k: exact on every unit, GGUF's blocks, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import GROUPED, assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import quantize_activations, reference_linear
from scale_numbers import NUMBERS, any_scales, finite_values, number_of

import sterna.ops as ops
from sterna import _native, formats
from sterna.formats import codec
from sterna.formats.arithmetic import round_half_away
from sterna.formats.scales import E4M3, E8M0, F16, GroupScales, SuperBlockScales
from sterna.formats.scales.numbers import ScaleNumber

# Suffixes over the layouts of levels (powers of two: test_power_formats.py), one group longer than
# the activations' and one no power of two.
# for files alone
IK = "iq2_k iq3_k iq4_k iq5_k iq6_k iq2_ks iq3_ks iq2_kl iq4_ks iq5_ks".split()
NAMES = [*GROUPED, *IK, "i1:g32", "i2:g64", "i2p:g128", "t5:g96", "i4:g32", "i8:g256"]
SUPER = [n for n in (*GROUPED, *IK) if isinstance(formats.get(n).scales, SuperBlockScales)]


def levels_of(f: formats.Format) -> np.ndarray:
    assert f.codebook is not None
    return f.codebook.array


def random_weight(name: str, M: int, K: int, seed: int) -> ops.PackedWeight:
    """Any levels and any scales that the format holds, from tiny to large."""
    f, rng = formats.get(name), np.random.default_rng(seed)
    shape = f.scales.shape(M, K)
    if isinstance(f.scales, SuperBlockScales):
        scales = super_scales(f.scales, shape, rng)
    else:
        scales = any_scales(number_of(f), shape, rng)
    return ops.pack(rng.choice(levels_of(f), (M, K)), scales, format=name)


def super_scales(
    layout: SuperBlockScales, shape: tuple[int, ...], rng: np.random.Generator
) -> np.ndarray:
    """Floats of super-blocks from tiny to large, of both signs, and any whole numbers."""
    scales = np.zeros(shape, np.float32)
    floats = rng.standard_normal(shape[:-1]) * 10.0 ** rng.integers(-6, 4, shape[:-1])
    scales[..., 0] = floats if layout.wide else floats.astype(np.float16)
    for part, (low, high) in enumerate(layout.ranges):
        to = scales[..., part, 1:] if layout.minima else scales[..., 1:]
        to[:] = rng.integers(low, high + 1, to.shape)
    return scales


def shape_for(name: str, groups: int) -> int:
    return groups * formats.get(name).scales.block


@pytest.mark.parametrize("name", NAMES)
def test_linear_equals_the_reference(name: str) -> None:
    """The bits are numpy's on every unit, for few tokens and for many, and every pool."""
    # 8 | 9 and 16 | 17 tokens are borders between ways to multiply.
    for M, groups, n in (
        (1, 1, 1),
        (70, 3, 2),
        (130, 2, 7),
        (70, 2, 8),
        (70, 1, 9),
        (130, 1, 16),
        (65, 5, 40),
    ):
        K = shape_for(name, groups)
        packed = random_weight(name, M, K, seed=n)
        x = np.random.default_rng(n).standard_normal((n, K)).astype(np.float32) * 3
        x[:, :7] *= 100  # outliers of one group
        expected = reference_linear(x, packed)
        for isa in _native.isas():
            for threads in (1, 3):
                assert_same_bits(ops.linear(x, packed, isa=isa, threads=threads), expected)


@pytest.mark.parametrize("name", NAMES)
def test_extreme_levels_and_activations(name: str) -> None:
    """The largest sums of a group, all of one sign: nothing saturates on any unit."""
    f = formats.get(name)
    K = shape_for(name, 4)
    scale = np.ones(f.scales.shape(70, K), np.float32)
    if isinstance(f.scales, SuperBlockScales):  # the largest total of 32 k, exact as a float
        scale[..., 1:] = f.scales.scale_range[0] or f.scales.scale_range[1]
        if f.scales.minimum_range:
            scale[..., 1, 1:] = f.scales.minimum_range[1]
    for end in (0, -1):
        packed = ops.pack(np.full((70, K), levels_of(f)[end]), scale, format=name)
        for sign in (1, -1):
            x = np.full((20, K), sign * 127.0, np.float32)
            expected = reference_linear(x, packed)
            for isa in _native.isas():
                assert_same_bits(ops.linear(x, packed, isa=isa), expected)
                assert_same_bits(ops.linear(x[:1], packed, isa=isa), expected[:1])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=25)
@given(M=st.integers(0, 130), groups=st.integers(0, 5), seed=st.integers(0, 2**32 - 1))
def test_round_trip(name: str, M: int, groups: int, seed: int) -> None:
    """unpack gives levels and scales back, and scales lie as docs/reference/formats.md says."""
    f, K = formats.get(name), shape_for(name, groups)
    packed = random_weight(name, M, K, seed)
    levels, scales = ops.unpack(packed)
    repacked = ops.pack(levels, scales, format=name)
    np.testing.assert_array_equal(repacked.codes, packed.codes)
    np.testing.assert_array_equal(repacked.scale, packed.scale)
    assert packed.nbytes == packed.codes.nbytes + packed.scale.nbytes
    # [tile][group][scale, minimum][row of the tile]
    if M and groups and isinstance(f.scales, GroupScales):
        m, g = M - 1, groups - 1
        number = f.scales.number
        lines = packed.scale[m // f.tile_rows].view(number.dtype).reshape(-1, f.tile_rows)
        got = lines[g * (2 if f.scales.minima else 1), m % f.tile_rows]
        assert number.decoded(got) == scales.reshape(M, groups, -1)[m, g, 0]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number.name)
def test_numbers(number: ScaleNumber) -> None:
    """What a number holds it keeps, in the words that stand for it; what lies between two of these
    becomes one of both."""
    values = np.unique(finite_values(number))
    held, can = number.rounded(values)
    assert can.all()
    assert_same_bits(held, values)
    assert_same_bits(number.decoded(number.encoded(values)), values)
    lines = number.encoded(values).view(np.uint8)
    assert number.valid(lines, 1)
    assert not number.valid(np.full(number.dtype.itemsize, 0xFF, np.uint8), 1)
    positive = values[(values > number.coarse) & (values < 2.0**100)]
    low, high = positive[:-1], positive[1:]
    for share in (0.25, 0.75):
        between = (low + (high - low) * np.float32(share)).astype(np.float32)
        for made in (number.nearest(between), number.lifted(between)):
            assert ((made == low) | (made == high)).all()


def test_words_of_numbers() -> None:
    """IEEE half, PyTorch's E4M3, and 2^(e - 127), of OCP Microscaling, by their definitions."""
    words = np.arange(255, dtype=np.uint8)
    assert_same_bits(E8M0.decoded(words), np.exp2(words.astype(np.float64) - 127).astype("f4"))
    every = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    assert_same_bits(E4M3.decoded(words[:127]), every.numpy())
    some = np.random.default_rng(4).uniform(0, 448, 4000).astype(np.float32) ** 2 / 448
    middles = (every[1:] + every[:-1]).numpy() / 2
    for x in (some, middles):
        rounded = torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()
        assert_same_bits(E4M3.nearest(x), rounded)
    halves = np.array([0x3C00, 0x0001, 0xFBFF], np.uint16).view(np.float16)
    assert_same_bits(F16.decoded(halves), np.array([1, 2.0**-24, -65504], np.float32))


@pytest.mark.parametrize("name", SUPER)
def test_lines_of_super_blocks(name: str) -> None:
    """[tile][super-block]: lines of floats, then for each group lines of whole numbers."""
    f, M, K = formats.get(name), 70, 512
    packed = random_weight(name, M, K, seed=5)
    parts = packed.scales.reshape(M, 2, 2 if f.scales.minima else 1, 1 + 256 // f.scales.group)
    expected = np.zeros((2, 2, packed.scale.shape[1] // 2), np.uint8)
    for m in range(M):
        for block in range(2):
            to = expected[m // 64, block]
            floats = parts[m, block, :, 0].astype("<f4" if f.scales.wide else "<f2")
            size = floats.itemsize
            for part, value in enumerate(floats):
                at = size * (64 * part + m % 64)
                to[at : at + size] = np.frombuffer(value.tobytes(), np.uint8)
            whole = parts[m, block, :, 1:].astype(np.int8).view(np.uint8)
            if name == "q2_k":  # both in a byte
                whole = whole[:1] | whole[1:] << 4
            at = 64 * floats.nbytes + m % 64
            for value in whole.T.reshape(-1):
                to[at] = value
                at += 64
    np.testing.assert_array_equal(packed.scale, expected.reshape(2, -1))


def test_lines_of_micro_blocks() -> None:
    """[tile]: a line of float32, then for each 16 k a line of bytes; rows end with half a group."""
    M, K = 70, 48
    packed = random_weight("nvfp4", M, K, seed=5)
    scales = packed.scales.reshape(M, 4)
    expected = np.zeros((2, 64 * (4 + 4)), np.uint8)  # K is padded to 64
    for m in range(M):
        tile, row = expected[m // 64], m % 64
        tile[4 * row :][:4] = np.frombuffer(scales[m, 0].tobytes(), np.uint8)
        tile[256 + row :: 64][:3] = E4M3.encoded(scales[m, 1:])
    np.testing.assert_array_equal(packed.scale, expected)
    layout, scale_layout = packed.format.layout, packed.format.scales
    assert scale_layout.valid(packed.scale, layout, 1)
    for at, value in ((3, 0x7F), (256, 0x7F), (256, 0x80)):  # infinity or NaN, NaN, a sign
        bad = packed.scale.copy()
        bad[0, at] = value
        bad[0, at - 1] |= 0x80 if at == 3 else 0
        assert not scale_layout.valid(bad, layout, 1)


@pytest.mark.parametrize("name", SUPER)
def test_lines_of_an_untrusted_file(name: str) -> None:
    """A float that is not finite, or a whole number that GGUF's bits do not hold, is found."""
    f = formats.get(name)
    lines = random_weight(name, 3, 512, seed=1).scale
    assert f.scales.valid(lines, f.layout, 2)
    infinity, nan = (b"\0\0\x80\x7f", b"\0\0\xc0\xff") if f.scales.wide else (b"\0\x7c", b"\0\x7e")
    for at, value in ((0, infinity), (0, nan), (lines.shape[1] - 64, b"\x40")):
        bad = lines.copy()
        bad[0, at : at + len(value)] = np.frombuffer(value, np.uint8)
        any_byte = name in ("q2_k", "q6_k", "iq4_k", "iq4_ks", "iq5_ks", "iq6_k")
        assert f.scales.valid(bad, f.layout, 2) == (at > 0 and any_byte)
    if f.scales.wide:
        bad = lines.copy()
        bad[0, -1] = 0x80  # below any that a file has
        assert not f.scales.valid(bad, f.layout, 2)


@pytest.mark.parametrize("name", SUPER)
def test_the_reference_of_super_blocks(name: str) -> None:
    """The oracle itself: real weights times rounded activations, in float64."""
    packed = random_weight(name, 33, 768, seed=2)
    x = np.random.default_rng(3).standard_normal((4, 768)).astype(np.float32)
    q, s = quantize_activations(x.reshape(-1, 32), 1e-30)
    rounded = (q.astype(np.float64) * s[:, None]).reshape(x.shape)
    real = ops.dequantize(packed).astype(np.float64)
    levels = np.abs(ops.unpack(packed)[0]).reshape(33, -1, formats.get(name).scales.group)
    values = np.abs(formats.get(name).scales.group_values(packed.scales, 33, 768)).astype(
        np.float64
    )
    terms = levels * values[..., :1] + values[..., 1:].sum(2, keepdims=True)
    size = np.abs(rounded) @ terms.reshape(33, -1).T
    error = np.abs(reference_linear(x, packed) - rounded @ real.T)
    assert (error <= 100 * 2.0**-24 * size).all()


@pytest.mark.parametrize(
    "name", ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "mxfp4", "tq1_0", "tq2_0"]
)
def test_blocks_are_those_of_gguf(name: str) -> None:
    """The rule gives the gguf package's blocks, and what rounding makes is nowhere farther off."""
    gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")
    kind = gguf.GGMLQuantizationType[name.upper()]
    rng = np.random.default_rng(3)
    w = (rng.standard_normal((40, 256)) * 10.0 ** rng.integers(-4, 3, (40, 1))).astype(np.float32)
    w[3] = 0
    w[4, :32] = np.linspace(-1, 1, 32)  # ties
    blocks = gguf.quants.quantize(w, kind)
    expected = gguf.quants.dequantize(blocks, kind)
    got = ops.dequantize(ops.pack(*codec.by_rule(formats.get(name), w), format=name))
    differ = got != expected
    assert differ.mean() <= (0.002 if name == "mxfp4" else 0)  # the package breaks ties upwards
    np.testing.assert_allclose(got[differ] - w[differ], w[differ] - expected[differ], rtol=1e-5)
    best = ops.dequantize(ops.quantize(w, name))
    errors, most = (block_errors(made, w, name) for made in (best, got))
    assert (errors <= most * (1 + 1e-6)).all()
    searched = name in ("q4_0", "q4_1", "q5_0", "q5_1", "mxfp4")
    assert (errors.sum() < 0.95 * most.sum()) == searched


def block_errors(made: np.ndarray, w: np.ndarray, name: str) -> np.ndarray:
    """Squares of errors of each group, which count by w² + its mean, of weights of one size."""
    group = formats.get(name).scales.group
    apart, squares = (
        np.square(a.astype(np.float64)).reshape(-1, group) for a in (made.astype(np.float64) - w, w)
    )
    size = np.maximum(squares.mean(axis=1, keepdims=True), 1e-300)
    return (apart / size * (squares / size + 1)).sum(axis=1)


@pytest.mark.parametrize("name", NAMES)
def test_quantised_weights_are_near(name: str) -> None:
    """Rounding again changes nothing, and the error is what so many bits allow."""
    K = shape_for(name, 3)
    w = np.random.default_rng(9).standard_normal((50, K)).astype(np.float32)
    packed = ops.quantize(w, name)
    real = ops.dequantize(packed)
    error = np.sqrt(np.mean((real - w) ** 2))
    f = formats.get(name)
    most = {
        "i1": 0.62, "i2": 0.53, "t5": 0.53, "i2p": 0.45, "mxfp4": 0.13, "tq1_0": 0.9,
        "tq2_0": 0.9, "iq4_nl": 0.1, "iq4_xs": 0.1, "nvfp4": 0.11, "iq3_k": 0.1, "iq3_ks": 0.13,
        "iq4_k": 0.1, "iq4_ks": 0.1,
    }.get(name.split(":")[0])  # fmt: skip
    assert error < (most or 2 / len(levels_of(f)))
    x = np.random.default_rng(8).standard_normal((3, K)).astype(np.float32)
    y = ops.linear(x, packed)
    np.testing.assert_allclose(y, x @ real.T, atol=0.02 * np.abs(x @ real.T).max())


def test_zero_weights_and_zero_activations() -> None:
    """A block of zeros has a scale of 0 (or the smallest power of two) and gives exact zeros."""
    for name in NAMES:
        K = shape_for(name, 2)
        packed = ops.quantize(np.zeros((5, K), np.float32), name)
        if not name.startswith(("i1", "i2p", "q1_0")):  # no zero among their levels
            np.testing.assert_array_equal(ops.dequantize(packed), 0)
        np.testing.assert_array_equal(ops.linear(np.zeros((2, K), np.float32), packed), 0)


def test_tiny_activations_keep_their_scale() -> None:
    """A group of values far below 1e-5 is not rounded to zero, as a token's would be."""
    packed = ops.quantize(np.eye(32, dtype=np.float32), "q8_0")
    x = np.linspace(1e-12, 2e-12, 32, dtype=np.float32)[None]
    np.testing.assert_allclose(ops.linear(x, packed), x, rtol=0.01)


def test_halves_round_away_from_zero() -> None:
    """0.49999997 is below a half, though adding 0.5 to it gives 1."""
    x = np.array([0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.49999997, 3.0], np.float32)
    np.testing.assert_array_equal(round_half_away(x), [1, -1, 2, 3, -3, 0, -0.0, 3])
