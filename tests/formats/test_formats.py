"""Weight formats: the bytes that files hold, and what packing and rounding keep."""

from __future__ import annotations

import dataclasses
import importlib
import math
import pkgutil

import numpy as np
import pytest
import torch
from helpers import FLOAT, INTEGER, ISAS, LEVELS, assert_same_bits, command, failed, failure
from hypothesis import given, settings
from hypothesis import strategies as st

import sterna.ops as ops
from sterna import LLM, _native, formats
from sterna.errors import RequestError
from sterna.formats.codebook import TERNARY
from sterna.formats.codec import pack_codes


def tiles_by_definition(layout: str, w: np.ndarray) -> np.ndarray:
    """The tile layout of docs/reference/formats.md, written out with plain indexing.

    It is what files hold, so it is fixed here independently of the packing code. `w` [M, K] holds
    codes (level + offset, divided by the step) for integer formats, bits for float formats.
    """
    M, K = w.shape
    rows = {"b1": 128, "t5": 48}.get(layout, 64)
    lines = 2 if layout == "b4" else 1  # of 64 bytes for 4 k
    step_k = {"bf16": 2, "f16": 1, "f32": 1}.get(layout, 64)
    tiles = np.zeros((-(-M // rows), rows, -(-K // step_k) * step_k), w.dtype)
    for m in range(M):
        tiles[m // rows, m % rows, :K] = w[m]
    n, _, padded = tiles.shape
    if layout in ("f32", "f16"):  # [k][row]
        return tiles.transpose(0, 2, 1).copy().view(np.uint8).reshape(n, -1)
    if layout == "bf16":  # [k / 2][row][k % 2]
        pairs = tiles.reshape(n, 64, padded // 2, 2).transpose(0, 2, 1, 3)
        return pairs.copy().view(np.uint8).reshape(n, -1)
    quads = tiles.reshape(n, rows // 16, 16, padded // 4, 4)  # [field][r][k / 4][k % 4]
    if layout == "b8":  # line f of a step, byte 4r + j: row 16f + r at k + j
        return quads.transpose(0, 3, 1, 2, 4).reshape(n, -1)
    if layout == "t5":
        v = quads[:, 0].astype(int) + 3 * quads[:, 1] + 9 * quads[:, 2] - 13
        q = np.where(v < 0, 16 - v, v).transpose(0, 2, 1, 3)  # [k / 4][r][k % 4]
        q = q.reshape(n, padded // 32, 8, 16, 4).transpose(2, 0, 1, 3, 4)
        lines = [
            q[0] | (q[5] & 7) << 5,
            q[1] | q[5] >> 3 << 5 | q[6] >> 4 << 7,
            q[2] | (q[6] & 7) << 5,
            q[3] | (q[6] >> 3 & 1) << 5 | q[7] >> 3 << 6,
            q[4] | (q[7] & 7) << 5,
        ]
        return np.stack(lines, axis=2).astype(np.uint8).reshape(n, -1)
    width = 8 * 16 * lines // rows
    quads = quads.reshape(n, lines, rows // 16 // lines, 16, padded // 4, 4)
    fields = sum(quads[:, :, f] << (width * f) for f in range(quads.shape[2]))
    return fields.transpose(0, 3, 1, 2, 4).astype(np.uint8).reshape(n, -1)


def plane_codes(name: str) -> tuple[int, int]:
    """(low bits, high bits) of a code of three, five or six."""
    return {"q3_k": (2, 1), "q5_k": (4, 1), "q5_0": (4, 1), "q6_k": (4, 2)}[name]


@pytest.mark.parametrize("name", ["q3_k", "q5_k", "q5_0", "q6_k"])
def test_layout_of_planes(name: str) -> None:
    """b3, b5 and b6: lines of low bits and a plane of high ones, byte by byte as planes.h says."""
    (low, high), M, K = plane_codes(name), 70, 256
    codes = np.random.default_rng(5).integers(0, 1 << (low + high), (M, K))
    packed = ops.pack(codes - formats.get(name).codebook.offset, 1.0, format=name)
    step_k, lines = 8 // high, low // 2
    plane = step_k // 4 * lines * 64
    expected = np.zeros((2, K // step_k, plane + 64), np.uint8)
    for (m, k), code in np.ndenumerate(codes):
        step = expected[m // 64, k // step_k]
        f, q, byte = m % 64 // 16, k % step_k // 4, 4 * (m % 16) + k % 4
        line, bit = (f // 2, 4 * (f % 2)) if low == 4 else (0, 2 * f)
        step[64 * (q * lines + line) + byte] |= (code & (1 << low) - 1) << bit
        step[plane + byte] |= code >> low << (4 * q + f if high == 1 else 2 * f)
    np.testing.assert_array_equal(packed.codes, expected.reshape(2, -1))


@pytest.mark.parametrize("name", ["iq5_k", "iq5_ks", "iq6_k"])
def test_bytes_of_super_blocks_lie_as_others(name: str) -> None:
    """Tiles are those of i8, of any of their levels."""
    f = formats.get(name)
    levels = np.random.default_rng(6).choice(f.codebook.array, (70, 256))
    scales = np.ones(f.scales.shape(70, 256), np.float32)
    packed = ops.pack(levels, scales, format=name)
    np.testing.assert_array_equal(packed.codes, ops.pack(levels, 1.0, format="i8").codes)
    np.testing.assert_array_equal(packed.unpacked(), levels)


@pytest.mark.parametrize("shape", [(1, 1), (64, 64), (70, 130), (129, 63)], ids=str)
@pytest.mark.parametrize("name", [n for n in [*INTEGER, *FLOAT] if not n.startswith("pot")])
def test_layout(name: str, shape: tuple[int, int]) -> None:
    """Packed bytes are those of the definition, apart from the padding."""
    rng, f = np.random.default_rng(8), formats.get(name)
    layout = f.layout.name
    if f.codebook is not None:
        levels = rng.choice(LEVELS[name], shape)
        codes = (levels.astype(int) + f.codebook.offset) // f.codebook.step
        packed = ops.pack(levels, 1.0, format=name)
        expected = tiles_by_definition(layout, codes.astype(np.uint8))
        most = {"b8": 255, "b4": 15, "b1": 1, "t5": 0}.get(layout, 3)
        inside = tiles_by_definition(layout, np.full(shape, most, np.uint8))
        if layout == "t5":  # a byte's padding is of the code 0 as well
            inside[:] = 255
    else:
        values = torch.from_numpy(rng.standard_normal(shape, np.float32))
        packed = ops.pack(values.numpy(), format=name)
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]
        half = values.to(dtype)
        stored = (half if name == "f32" else half.view(torch.int16)).numpy()
        expected = tiles_by_definition(layout, stored)
        inside = np.full_like(expected, 255)
    np.testing.assert_array_equal(packed.codes & inside, expected & inside)


@pytest.mark.parametrize("name", formats.names())
def test_a_weights_format_does_for_its_name(name: str) -> None:
    """It equals the name, in a set as well, prints as it, and packs as it."""
    packed = ops.quantize(np.ones((3, 256), np.float32), name)
    f = packed.format
    assert f == name
    assert f not in ("i7", "")
    assert len({f, name, formats.get(f)}) == 1
    assert f"{f} {f:>9}" == f"{name} {name:>9}"
    assert repr(packed) == f"PackedWeight(format='{name}', M=3, K=256)"
    levels, scale = ops.unpack(packed)
    repacked = ops.pack(levels, scale if f.scaled else None, format=f)
    np.testing.assert_array_equal(repacked.codes, packed.codes)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        ("tl1_0", "i2"),
        ("tl2_1", "t5"),
        ("tmac2_1:row", "i2:row"),
        ("elut4", "i2p"),
        ("elut5", "i4"),
    ],
)
def test_lookup_tables_are_elsewhere(name: str, instead: str) -> None:
    """The error says where they are, and which format has the same levels."""
    words = (name.partition(":")[0], "sterna-papers", f"use {instead}, which")
    failure(lambda: formats.get(name), RequestError, *words)
    failure(lambda: LLM("nano", format=name), RequestError, *words)
    failed(command("bench", "gemv", "--formats", name), *words)


def test_codes_of_files() -> None:
    """The meaning of codes in packed files: another offset or step needs another LAYOUT_VERSION."""
    rules = {
        (1, 1): "i2 t5 tq1_0 tq2_0 pq2_0",
        (0, 1): "q2_0 q4_1 q5_1 q2_k q4_k q5_k pot4 pot4z iq4_nl iq4_xs nf4 fp4 nf2",
        (1, 2): "i1 q1_0",
        (3, 2): "i2p",
        (4, 1): "q3_k",
        (8, 1): "i4 q4_0",
        (12, 1): "mxfp4",
        (16, 1): "q5_0",
        (32, 1): "q6_k",
        (128, 1): "i8 q8_0",
    }
    for rule, names in rules.items():
        for name in names.split():
            codebook = formats.get(name).codebook
            assert codebook is not None
            assert codebook.code_rule == rule, name


@pytest.mark.parametrize("max_code", [1, 2, 3])
def test_codes_above_the_greatest(max_code: int) -> None:
    """One code of two bits is found wherever it is, among any number of bytes."""
    for n, at in ((64, 0), (64, 63), (7, 6), (13, 9)):
        for code in range(4):
            for field in range(4):
                others = np.full(n, 0x55, np.uint8)  # code 1
                others[at] &= ~np.uint8(3 << 2 * field)
                others[at] |= np.uint8(code << 2 * field)
                assert _native.codes_valid("b2", others, max_code, 1) == (code <= max_code)


@pytest.mark.parametrize("name", INTEGER)
def test_a_format_has_the_codes_of_its_levels(name: str) -> None:
    """A packed matrix of all levels is valid."""
    f = formats.get(name)
    levels = np.resize(LEVELS[name], (70, 512))
    assert f.codes_valid(pack_codes(f, levels), 1)


@st.composite
def matrices(draw: st.DrawFn, name: str) -> tuple[np.ndarray, np.ndarray]:
    """(levels int8 [M, K], scale float32 () or [M])."""
    M, K = draw(st.integers(0, 140)), draw(st.integers(0, 140))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scale = rng.uniform(1e-6, 1e6, M if draw(st.booleans()) else ()).astype(np.float32)
    return rng.choice(LEVELS[name], (M, K)), np.asarray(scale)


@pytest.mark.parametrize("name", INTEGER)
@settings(max_examples=60)
@given(data=st.data())
def test_round_trip_of_levels(name: str, data: st.DataObject) -> None:
    """unpack(pack(levels, scale)) gives both back, whatever the shape."""
    levels, scale = data.draw(matrices(name))
    packed = ops.pack(levels, scale, format=name)
    assert (packed.format, packed.M, packed.K) == (name, *levels.shape)
    unpacked, unpacked_scale = ops.unpack(packed)
    np.testing.assert_array_equal(unpacked, levels)
    assert_same_bits(np.asarray(unpacked_scale), scale)


@pytest.mark.parametrize("name", FLOAT)
@settings(max_examples=60)
@given(M=st.integers(0, 140), K=st.integers(0, 140), seed=st.integers(0, 2**32 - 1))
def test_round_trip_of_floats(name: str, M: int, K: int, seed: int) -> None:
    """Float formats round once, to nearest even, and keep what they hold exactly."""
    rng = np.random.default_rng(seed)
    w = (rng.standard_normal((M, K)) * 10.0 ** rng.integers(-9, 5, (M, K))).astype(np.float32)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[name]
    expected = torch.from_numpy(w).to(dtype).float().numpy()
    assert_same_bits(ops.dequantize(ops.pack(w, format=name)), expected)
    assert_same_bits(ops.dequantize(ops.pack(expected, format=name)), expected)


@pytest.mark.parametrize("scale", ["tensor", "row", None])
@pytest.mark.parametrize("name", INTEGER)
def test_quantize_rounds_to_the_nearest_level(name: str, scale: str | None) -> None:
    """Every weight lies within half a level of its own value, unless beyond the outermost."""
    rng = np.random.default_rng(5)
    w = (rng.standard_normal((40, 70)) * rng.uniform(0.1, 3, (40, 1))).astype(np.float32)
    packed = ops.quantize(w, name, scale=scale) if scale else ops.quantize(w, name)
    assert (
        packed.scale.shape in ((), (40,))
        if scale is None
        else (packed.scale.shape == {"tensor": (), "row": (40,)}[scale])
    )
    levels, got = ops.unpack(packed)[0].astype(int), ops.dequantize(packed)
    gap, lowest, highest = np.diff(LEVELS[name]).max(), LEVELS[name][0], LEVELS[name][-1]
    shape = (1, -1) if packed.scale.ndim == 0 else levels.shape  # of what shares a scale
    at = np.abs(levels.reshape(shape)).argmax(axis=1)[:, None]
    most, value = (np.take_along_axis(a.reshape(shape), at, 1) for a in (levels, got))
    unit = np.broadcast_to(value / most, w.shape)  # of a level of 1, sign and all
    inside = (w / unit >= lowest) & (w / unit <= highest)
    error = np.abs(w - got)
    # Powers are rounded in the logarithm: from sqrt(2) * 64 up to 128, say.
    part = 2 - math.sqrt(2) if name.startswith("pot") else 0.5
    assert (error[inside] <= (gap * part * np.abs(unit) * (1 + 1e-5))[inside]).all()
    assert (levels == np.where(w / unit > 0, highest, lowest))[~inside].all()
    assert set(np.unique(levels)) <= set(LEVELS[name].tolist())


def test_quantize_follows_the_bitnet_recipe() -> None:
    """i2 per tensor is BitNet's WeightQuant: T = clamp(round(W/mean|W|), −1, 1), half to even."""
    rng = np.random.default_rng(6)
    w = rng.standard_normal((48, 80)).astype(np.float32)
    packed = ops.quantize(w, "i2", scale="tensor")
    mean = np.abs(w).mean(dtype=np.float64)
    np.testing.assert_allclose(packed.scale, mean, rtol=1e-6)
    clear = np.abs(np.abs(w / mean) - 0.5) > 1e-5  # a tie may fall either way in float32
    expected = np.clip(np.rint(w / mean), -1, 1)
    np.testing.assert_array_equal(ops.unpack(packed)[0][clear], expected[clear])


@pytest.mark.parametrize("name", [n for n in formats.names() if formats.get(n).codebook == TERNARY])
def test_bytes_of_bitnet_are_packed_as_levels(name: str) -> None:
    """Row i * M / 4 + r in bits 2i of byte row r, for every format whose codes are level + 1."""
    f, rng = formats.get(name), np.random.default_rng(0)
    for M, K in ((4, 256), (100, 256), (132, 512)):
        levels = rng.integers(-1, 2, (M, K)).astype(np.int8)
        quarters = (levels + 1).astype(np.uint8).reshape(4, M // 4, K)
        packed = np.bitwise_or.reduce([q << 2 * i for i, q in enumerate(quarters)])
        codes = _native.pack(f.layout.name, "bitnet", [packed], 0, 1, None, 2)
        np.testing.assert_array_equal(codes, pack_codes(f, levels))


@pytest.mark.parametrize("name", ["t5", "t5:g96", "tq1_0"])
def test_any_byte_is_trits(name: str) -> None:
    """Magnitudes 14 and 15, which packing does not write, are zeros to every unit."""
    rng = np.random.default_rng(11)
    x = rng.standard_normal((9, 768), np.float32)
    usual = ops.quantize(rng.standard_normal((100, 768)), name)
    odd = dataclasses.replace(usual, codes=rng.integers(0, 256, usual.codes.shape, np.uint8))
    levels, _ = ops.unpack(odd)
    assert set(np.unique(levels)) == {-1, 0, 1}
    same = dataclasses.replace(usual, codes=pack_codes(formats.get(name), levels))
    assert (same.codes != odd.codes).any()
    for isa in ISAS:
        for n in range(1, 10):
            assert_same_bits(ops.linear(x[:n], odd, isa=isa), ops.linear(x[:n], same, isa="scalar"))


def test_modules_define_formats_of_their_own_names() -> None:
    """Formats are found by module: one of another name would be none."""
    defined = {
        info.name: module.FORMAT.name
        for info in pkgutil.iter_modules(formats.__path__)
        if hasattr(module := importlib.import_module(f"sterna.formats.{info.name}"), "FORMAT")
    }
    assert sorted(defined) == sorted(defined.values())
    offered = [name for name in sorted(defined) if not formats.get(name).of_files]
    assert offered == formats.names()
