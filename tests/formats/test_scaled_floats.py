"""fp8: values by the definition of their types, tiles, and the bits of f32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers import ISAS, assert_same_bits

from sterna import formats, ops
from sterna.formats import PackedWeight, codec
from sterna.formats.scaled_floats import ScaledFloats

NAMES = [name for name in formats.names() if isinstance(formats.get(name), ScaledFloats)]


def scaled(name: str) -> ScaledFloats:
    format = formats.get(name)
    assert isinstance(format, ScaledFloats)
    return format


def test_values() -> None:
    """PyTorch's type."""
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    np.testing.assert_array_equal(np.isnan(scaled("fp8").values), every.isnan().numpy())
    assert_same_bits(scaled("fp8").values[:127], every[:127].numpy())
    assert_same_bits(scaled("fp8").values[128:255], every[128:255].numpy())


@pytest.mark.parametrize("name", NAMES)
def test_rounding_is_to_the_nearest_even(name: str) -> None:
    """Numbers, and all that lie in the middle of two values."""
    f, rng = scaled(name), np.random.default_rng(1)
    values = np.unique(f.values[np.isfinite(f.values)]).astype(np.float64)
    middles = (values[1:] + values[:-1]) / 2
    x = np.concatenate([values, middles, rng.uniform(values[0], values[-1], 4000)])
    got = f.values[f.nearest(x)]
    expected = torch.from_numpy(x).to(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("name", NAMES)
def test_layout(name: str) -> None:
    """Byte by byte: of each row block 16 scales, then its codes."""
    f, rng, M, K = scaled(name), np.random.default_rng(2), 70, 96
    codes = rng.integers(0, 127, (M, K)).astype(np.uint8)
    scales = rng.random((M, K // f.group), np.float32)
    tiles = codec.pack_codes(f, f.joined(codes, scales))
    packed = PackedWeight(f, M, K, tiles, np.ones((), np.float32))
    group = f.group
    block = np.zeros((2, K // group, 4, 64 + 16 * group), np.uint8)
    for (m, k), code in np.ndenumerate(codes):
        lines = block[m // 64, k // group, m % 64 // 16]
        r, j = m % 16, k % group
        stored = np.float32(scales[m, k // group] * np.float32(f.stored))
        lines[4 * r : 4 * r + 4] = np.frombuffer(stored.tobytes(), np.uint8)
        lines[64 + 16 * j + r] = code
    np.testing.assert_array_equal(packed.codes, block.reshape(2, -1))
    of_weights = np.repeat(scales, group, axis=1)
    assert_same_bits(ops.dequantize(packed) + 0.0, f.values[codes] * of_weights + 0.0)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", NAMES)
def test_the_bits_of_f32(name: str, isa: str) -> None:
    """Weights in f32 give the same sums, of any number of tokens."""
    rng = np.random.default_rng(3)
    weight = ops.quantize(rng.standard_normal((130, 192)).astype(np.float32), name)
    floats = ops.pack(ops.dequantize(weight), format="f32")
    x = rng.standard_normal((40, 192)).astype(np.float32)
    for n in (1, 3, 17, 40):
        assert_same_bits(ops.linear(x[:n], weight, isa=isa), ops.linear(x[:n], floats, isa=isa))
        fast = ops.linear(x[:n], weight, isa=isa, deterministic=False)
        assert_same_bits(fast, ops.linear(x[:n], weight, isa=isa))  # there is no other arithmetic


@pytest.mark.parametrize("name", NAMES)
def test_codes_of_a_file(name: str) -> None:
    """Scales that are not finite, and codes that are no numbers, are told."""
    f = scaled(name)
    codes = ops.quantize(np.ones((64, 32), np.float32), name).codes
    assert f.codes_valid(codes, 1)
    for at in (0, 64):
        damaged = codes.copy()
        damaged[0, at : at + 4] = 255
        assert not f.codes_valid(damaged, 1)
