"""Raw blocks of GGUF files: weights are the gguf package's, to the bit, and what is refused."""

from __future__ import annotations

import ik_types
import numpy as np
import pytest
from helpers import assert_same_bits, failure
from oracle import reference_linear

import sterna.ops as ops
from sterna import _native
from sterna.errors import NonFiniteError, RequestError
from sterna.formats.codec import pack_codes
from sterna.formats.ggml_blocks import BLOCKS, from_ggml

gguf = pytest.importorskip("gguf", reason="needs the gguf package (pip install sterna[test])")

#: Where a block's f16 values are: their upper bytes.
HALVES = {
    "q4_0": (1,), "q4_1": (1, 3), "q8_0": (1,), "mxfp4": (), "q2_k": (81, 83), "q3_k": (109,),
    "q4_k": (1, 3), "q5_k": (1, 3), "q6_k": (209,), "tq1_0": (53,), "tq2_0": (65,),
    "iq4_nl": (1,), "iq4_xs": (1,), "q5_0": (1,), "q5_1": (1, 3), "q1_0": (1,), "q2_0": (1,),
    "q2_0_ternary": (1,), "pq2_0": (1,), "pq2_0_ternary": (1,), "ptq1_0": (27,),
    "stq1_0": (41,), "iq1_s": (1,), "iq1_m": (), "iq2_xxs": (1,), "iq2_xs": (1,), "iq2_s": (1,),
    "iq3_xxs": (1,), "iq3_s": (1,), "q6_0": (1,), "iq2_k": (1,), "iq3_k": (1,), "iq4_k": (1,),
    "iq2_ks": (1,), "iq3_ks": (1,), "iq2_kl": (1,), "iq4_ks": (3,), "iq4_kss": (3,),
    "iq5_k": (1,), "iq5_ks": (3,), "iq6_k": (1,),
}  # fmt: skip
#: Their d is a float32.
WIDE = ("iq4_ks", "iq4_kss", "iq5_ks")


def random_blocks(name: str, M: int, count: int, seed: int) -> np.ndarray:
    """Any bytes [M, count blocks], but finite scales; tiny and large ones, and of both signs."""
    raw = np.random.default_rng(seed).integers(0, 256, (M, count, BLOCKS[name].nbytes), np.uint8)
    codes = {"tq2_0": slice(64), "q2_0_ternary": slice(2, 18), "pq2_0_ternary": slice(2, 34)}
    if name in codes:  # no code 3: of a field's two bits, the upper one goes
        raw[:, :, codes[name]] &= ~(raw[:, :, codes[name]] << 1 & 0xAA)
    for at in HALVES[name]:
        raw[:, :, at] = np.where(raw[:, :, at] & 0x7C == 0x7C, 0x3C, raw[:, :, at])
        if name in WIDE:  # of no extreme size: products are finite, and their sums
            raw[:, :, at] = raw[:, :, at] & 0x8F | 0x30
    if name == "iq1_m":  # four bits of d are in each of four words, the highest in the last
        raw[:, :, 55] &= 0xBF
    if name == "mxfp4":
        raw[:, :, 0] = np.minimum(raw[:, :, 0], 200)
    return raw.reshape(M, count * BLOCKS[name].nbytes)


def by_gguf(name: str, raw: np.ndarray) -> np.ndarray:
    if name.startswith(
        ("q1_0", "q2_0", "pq2_0", "ptq1_0", "stq1_0")
    ):  # the package cannot read these
        return by_definition(name, raw)
    if name in ik_types.WEIGHTS:
        return ik_types.weights(name, raw, BLOCKS[name].nbytes, BLOCKS[name].k)
    return np.asarray(gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name.upper()]))


def by_definition(name: str, raw: np.ndarray) -> np.ndarray:
    """Q1_0, Q2_0 and Prism's types weight by weight, as their blocks are published."""
    k, nbytes = BLOCKS[name].k, BLOCKS[name].nbytes
    rows = []
    for row in raw:
        weights: list[float] = []
        for block in row.reshape(-1, nbytes):
            at = {"ptq1_0": 26, "stq1_0": 40}.get(name, 0)
            d, codes = float(block[at : at + 2].copy().view("<f2")[0]), block[2:]
            for j in range(k):
                if name == "ptq1_0":
                    weights.append(d * trit_of(block, j))
                elif name == "stq1_0":
                    weights.append(d * sherry_of(block, j))
                elif name == "q1_0":
                    weights.append(d if codes[j // 8] >> (j % 8) & 1 else -d)
                else:
                    weights.append(d * ((int(codes[j // 4]) >> 2 * (j % 4) & 3) - 1))
        rows.append(weights)
    return np.array(rows, np.float32)


def trit_of(block: np.ndarray, j: int) -> int:
    """Weight j of a block of PTQ1_0, over d: a digit of one byte, the first the most significant.

    A byte stands for v / 3^5, v in 0..242, as a fraction of 256 that is rounded up.
    """
    for first, at, count in ((120, 24, 2), (80, 16, 8), (0, 0, 16)):
        if j >= first:
            digit, byte = divmod(j - first, count)
            return int(block[at + byte]) * 3 ** (digit + 1) // 256 % 3 - 1
    raise AssertionError(j)


#: Four weights of each code of STQ1_0, + 1, two bits each, the first lowest; then all negated.
SHERRY = bytes.fromhex("a9892909 a6862606 9a921a12 6a624a42 012181a1 042484a4 10189098 40486068")


def sherry_of(block: np.ndarray, j: int) -> int:
    """Weight j of a block of STQ1_0, over d, by the codebook as it is published."""
    chunk, place = divmod(j, 64)
    lane, group = divmod(place, 16)
    group += 16 * chunk
    code = int(block[group // 2]) >> 4 * (group % 2) & 15
    negated = int(block[32 + group // 8]) >> group % 8 & 1
    return (SHERRY[16 * negated + code] >> 2 * lane & 3) - 1


@pytest.mark.parametrize("name", BLOCKS)
def test_weights_are_those_of_gguf(name: str) -> None:
    """Random blocks stand for the weights that the gguf package says, all of them."""
    for M, count in ((1, 1), (70, 3), (3, 8), (0, 2)):
        raw = random_blocks(name, M, count, seed=M)
        packed = from_ggml(name, raw)
        assert packed.format == BLOCKS[name].format
        assert packed.shape == (M, count * BLOCKS[name].k)
        if M:
            zero = np.float32(0)  # a product of 0 may have either sign: adding 0 makes it one
            assert_same_bits(ops.dequantize(packed) + zero, by_gguf(name, raw) + zero)


@pytest.mark.parametrize("name", BLOCKS)
def test_linear_of_raw_blocks(name: str) -> None:
    """Every unit gives the bits of the reference for weights that no rounding of ours makes."""
    packed = from_ggml(name, random_blocks(name, 70, 3, seed=1))
    x = np.random.default_rng(1).standard_normal((20, packed.K)).astype(np.float32)
    expected = reference_linear(x, packed)
    for isa in _native.isas():
        assert_same_bits(ops.linear(x, packed, isa=isa), expected)
        assert_same_bits(ops.linear(x[0], packed, isa=isa), expected[0])


@pytest.mark.parametrize("name", BLOCKS)
def test_rounding_again(name: str) -> None:
    """Levels and scales of blocks pass through ops.pack unchanged: every value is one of ours."""
    packed = from_ggml(name, random_blocks(name, 5, 2, seed=4))
    repacked = ops.pack(*ops.unpack(packed), format=packed.format)
    np.testing.assert_array_equal(repacked.codes, packed.codes)
    np.testing.assert_array_equal(repacked.scale, packed.scale)


@pytest.mark.parametrize("half", [0x7C, 0xFC, 0x7E])  # inf, -inf, NaN
@pytest.mark.parametrize("name", BLOCKS)
def test_scales_that_are_not_finite(name: str, half: int) -> None:
    """Each is named with its block and row."""
    for at in HALVES[name] or (0,):
        raw = random_blocks(name, 3, 2, seed=1)
        block = raw[2, BLOCKS[name].nbytes :]
        if name == "iq1_m":
            block[53], block[55] = half << 4 & 0xF0, half & 0xF0
        else:
            block[at] = half if HALVES[name] else 255
        if name in WIDE:
            block[2], block[3] = 0x80, half | 3
        failure(lambda raw=raw: from_ggml(name, raw), NonFiniteError, name, "block 1 of row 2")


@pytest.mark.parametrize("name", BLOCKS)
def test_bad_arrays(name: str) -> None:
    """Rows that are not whole blocks, other types and shapes, too many columns."""
    k, nbytes = BLOCKS[name].k, BLOCKS[name].nbytes
    cut = np.zeros((2, nbytes + 1), np.uint8)
    failure(lambda: from_ggml(name, cut), RequestError, name, str(nbytes))
    failure(lambda: from_ggml(name, np.zeros(nbytes, np.uint8)), RequestError, name, "uint8")
    failure(lambda: from_ggml(name, np.zeros((1, nbytes), np.int8)), RequestError, name, "uint8")
    many = np.zeros((1, (65536 // k + 1) * nbytes), np.uint8)
    failure(lambda: from_ggml(name, many), RequestError, BLOCKS[name].format.name, "65536")
    failure(lambda: from_ggml("q9_k", many), RequestError, "q9_k", "q6_k")


def test_a_code_that_is_not_ternary() -> None:
    """ggml's two-bit code 3 is refused, and named."""
    raw = random_blocks("tq2_0", 2, 1, seed=6)
    raw[1, 33] |= 3 << 4
    failure(
        lambda: from_ggml("tq2_0", raw), RequestError, "tq2_0", "code 193", "block 0 of row 1 is 3"
    )


@pytest.mark.parametrize(("name", "k"), [("q2_0", 64), ("pq2_0", 128)])
def test_two_bits_that_are_ternary(name: str, k: int) -> None:
    """Blocks without a code 3 become `i2` in groups, the same weights; one code 3 keeps all four
    levels, wherever it is."""
    raw = random_blocks(f"{name}_ternary", 150, 3, seed=9)
    narrow = from_ggml(name, [raw[:70], raw[70:]], narrow=True)
    assert narrow.format == f"i2:g{k}"
    zero = np.float32(0)
    assert_same_bits(ops.dequantize(narrow) + zero, by_gguf(name, raw) + zero)
    assert from_ggml(name, raw).format == name
    raw[149, -1] |= 0xC0
    assert from_ggml(name, raw, narrow=True).format == name
    failure(
        lambda: from_ggml(f"{name}_ternary", raw),
        RequestError,
        f"code {k - 1}",
        "block 2 of row 149",
    )


def test_types_of_one_digit_each() -> None:
    """A block of PTQ1_0 with one weight that is not 0, at each place."""
    for j in range(128):
        levels = np.zeros(128, np.int64)
        levels[j] = 1 if j % 2 else -1
        block = np.zeros(28, np.uint8)
        block[26:] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
        for first, at, count, digits in ((0, 0, 16, 5), (80, 16, 8, 5), (120, 24, 2, 4)):
            for byte in range(count):
                value = 0
                for digit in range(5):
                    inside = digit < digits
                    value = 3 * value + (levels[first + digit * count + byte] + 1 if inside else 0)
                block[at + byte] = -(-value * 256 // 243)
        got = ops.dequantize(from_ggml("ptq1_0", block[None]))
        np.testing.assert_array_equal(got, levels[None] * np.float32(0.5))


@pytest.mark.parametrize("name", BLOCKS)
def test_kernels_and_numpy_read_the_same(name: str) -> None:
    """Codes and lines of scales, to the bit, for tiles that are not full and any order of rows."""
    k, nbytes, parse, f = BLOCKS[name]
    for M, count, threads in ((1, 1, 1), (64, 2, 2), (131, 5, 3), (70, 1100 // k + 1, 2)):
        raw = random_blocks(name, M, count, seed=M)
        order = np.random.default_rng(M).permutation(M).astype(np.int64)
        levels, scales = parse(raw[order].reshape(-1, nbytes))
        codes = pack_codes(f, levels.reshape(M, count * k))
        lines = f.scales.pack(scales.reshape(f.scales.shape(M, count * k)), f.layout, M, count * k)
        parts = [raw[: M // 3], raw[M // 3 :]]
        for blocks in (raw, parts):
            packed = from_ggml(name, blocks, threads=threads, order=order)
            np.testing.assert_array_equal(packed.codes, codes)
            np.testing.assert_array_equal(packed.scale, lines)


def test_all_types_are_the_kernels_too() -> None:
    """The sizes are the same."""
    assert _native.ggml_types() == {name: (b.k, b.nbytes) for name, b in BLOCKS.items()}


def test_a_bad_row_is_named_as_it_is_packed() -> None:
    """The message has its number among all parts, after they are put in order."""
    raw = random_blocks("q8_0", 6, 2, seed=8)
    raw[4, 35] = 0x7C
    order = np.array([4, 0, 1, 2, 3, 5])
    failure(lambda: from_ggml("q8_0", [raw[:3], raw[3:]]), NonFiniteError, "block 1 of row 4")
    failure(lambda: from_ggml("q8_0", [raw[:3], raw[3:]], order=order), NonFiniteError, "of row 0")
