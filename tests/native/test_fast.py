"""Float layers by bf16 products, of a matrix unit or of vectors: how large the error may be, and
that each unit has one arithmetic for every number of tokens and threads.

The bound counts roundings. The activations of a bf16 layer are rounded to 8 bits, 2^-8 of them at
most. Those of f16 and f32 layers are three planes exactly, |x1| <= 2^-8 |x|, |x2| <= 2^-16 |x|, as
are the weights, cut off: |w1| < 2^-7 |w|, |w2| < 2^-15 |w|. The products left out, w1 x2, w2 x1 and
w2 x2, are below 4.1 * 2^-24 of |w x|. A matrix unit's sum over a step of 32 k takes at most 33
roundings, and there is one for each product of planes (6 at most). Vectors round once for each k.
What is below 2^-126 counts as 0.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import FLOAT, INTEGER, assert_same_bits, failure
from oracle import fma_f32, reference_linear
from test_ops import SHAPES, activations, weights

import sterna.ops as ops
from sterna import _native, formats, loading
from sterna.engine import Engine
from sterna.errors import NonFiniteError, RequestError
from sterna.graph import Value
from sterna.graph.ops import LinearOp

# Such products are instructions of some units: there is nothing to run without one, and what
# `deterministic=False` means there (the same bits as True) is tested on every machine below.
LAYOUTS = {isa: layouts for isa in _native.isas() if (layouts := _native.fast_layouts(isa))}
#: Units whose sums are of pairs of k, on vectors; of others, those of a matrix unit.
PAIRS = [isa for isa, layouts in LAYOUTS.items() if not layouts["bf16"][1]]
PRODUCTS = {"bf16": 1, "f16": 5, "f32": 6}
LEAST = 2.0**-126  # a normal float


def is_fast(isa: str, name: str) -> bool:
    """Whether a unit has bf16 products for a format."""
    return formats.get(name).layout.name in LAYOUTS.get(isa, {})


def on_units(*names: str) -> pytest.MarkDecorator:
    """Run a test on each unit, with those formats of these that are fast there."""
    cases = [(isa, name) for isa in LAYOUTS for name in names if is_fast(isa, name)]
    none = pytest.param("", "", marks=pytest.mark.skip("needs a unit with bf16 products"))
    return pytest.mark.parametrize(("isa", "name"), cases or [none])


def rounding_bound(isa: str, name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The tolerance of each y [N, M] against the exact sum."""
    K = x.shape[1]
    rounded = 2.0**-8 if name == "bf16" else 4.1 * 2.0**-24
    roundings = K if isa in PAIRS else -(-K // 32) * PRODUCTS[name] + 33
    x, w = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
    # Planes that count as 0 are lost times the other factor; and each product and sum at its own.
    lost = LEAST * (x.sum(1)[:, None] + w.sum(1)[None, :] + PRODUCTS[name] * 2.0 * K)
    return (rounded + roundings * 2.0**-24 * 1.01) * (x @ w.T) + 4 * lost


def fast(isa: str, x: np.ndarray, packed: ops.PackedWeight, threads: int = 1) -> np.ndarray:
    """The product by the unit's bf16 products."""
    return ops.linear(x, packed, isa=isa, threads=threads, deterministic=False)


def check(isa: str, name: str, x: np.ndarray, packed: ops.PackedWeight) -> np.ndarray:
    """The error is within the bound."""
    y, w = fast(isa, x, packed), ops.dequantize(packed)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert (np.abs(y - exact) <= rounding_bound(isa, name, x, w)).all()
    return y


@pytest.mark.parametrize("shape", [*SHAPES, (300, 1000, 17), (130, 257, 530)], ids=str)
@on_units(*FLOAT)
def test_error_and_one_arithmetic(isa: str, name: str, shape: tuple[int, int, int]) -> None:
    """Within the bound, denormals included; the same bits for any threads and any part of x."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    for kind in ("random", "lowest", "highest", "stripes"):
        packed, x = weights(name, M, K, kind, rng), activations(N, K, kind, rng)
        y = check(isa, name, x, packed)
        for threads in (2, 3):
            assert_same_bits(fast(isa, x, packed, threads), y)
        for n in {1, 2, 12, 13, 15, 16, 17, 33, N // 2} & set(range(1, N + 1)):
            assert_same_bits(fast(isa, x[:n], packed), y[:n])
            assert_same_bits(fast(isa, x[N - n :], packed, 2), y[N - n :])


def flushed(y: np.ndarray) -> np.ndarray:
    """Denormals as zeros of their sign."""
    return np.where(np.abs(y) < LEAST, np.copysign(np.float32(0), y), y)


def pair_sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y [N, M] of bf16 numbers as VDPBF16PS adds them: the second k of each pair first."""
    total = np.zeros((len(x), len(w)), np.float32)
    x, w = flushed(x), flushed(w)
    for pair in range(0, x.shape[1], 2):
        for k in range(min(pair + 1, x.shape[1] - 1), pair - 1, -1):
            total = flushed(fma_f32(x[:, k, None], w[None, :, k], total))
    return total


def tile_sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """y [N, M] of bf16 numbers as TDPBF16PS adds them, in blocks of 192 k; w/o its denormals."""
    total = np.zeros((len(x), len(w)), np.float32)
    for begin in range(0, x.shape[1], 192):
        block = np.zeros_like(total)
        for step in range(begin, min(begin + 192, x.shape[1]), 32):
            runs = [np.zeros_like(total)] * 2  # of even k, of odd k
            for k in range(step, min(step + 32, x.shape[1])):
                runs[k % 2] = fma_f32(x[:, k, None], w[None, :, k], runs[k % 2])
            block = block + (runs[0] + runs[1])
        total = total + block
    return total


@pytest.mark.parametrize(
    "shape", [(70, 31, 1), (130, 257, 1), (64, 1000, 3), (80, 448, 20), (66, 1101, 14)], ids=str
)
@on_units("bf16", "pot8", "pot16")
def test_sums_are_those_of_the_instruction(
    isa: str, name: str, shape: tuple[int, int, int]
) -> None:
    """Bit for bit what its description says. One token takes vectors where there are tiles, too."""
    M, K, N = shape
    rng = np.random.default_rng([M, K])
    packed = ops.quantize(rng.standard_normal((M, K), np.float32), name)
    x = rng.standard_normal((N, K), np.float32)
    levels, scale = ops.unpack(packed)
    unit_sums = pair_sums if isa in PAIRS else tile_sums
    sums = unit_sums(ops.dequantize(ops.pack(x, format="bf16")), levels)
    y = sums if scale is None or not np.size(scale) else sums * np.float32(scale).reshape(1, -1)
    assert_same_bits(fast(isa, x, packed), y)
    assert_same_bits(fast(isa, x[:1], packed), y[:1])


@on_units("bf16")
def test_denormals_count_as_zeros(isa: str, name: str) -> None:
    """Weights, activations, products and sums that are denormal; what is not is kept."""
    w, x = np.zeros((4, 8), np.float32), np.zeros((20, 8), np.float32)
    w[0, 0], x[:, 0] = 2.0**-130, 2.0**100  # a denormal weight
    w[1, 2], x[:, 2] = 2.0**100, 2.0**-130  # a denormal activation
    w[2, 4], x[:, 4] = 2.0**-70, 2.0**-60  # a denormal product
    w[3, 6], x[:, 6] = 2.0**-60, 2.0**-66  # the least normal one
    for n in (1, 5, 20):
        y = fast(isa, x[:n], ops.pack(w, format=name))
        assert_same_bits(y, np.tile(np.float32([0, 0, 0, LEAST]), (n, 1)))
    # A product that is normal takes what is left after another: 1.5 * 2^-126 - 2^-126.
    w[0], x[:] = 0, 0
    w[0, :2], x[:, :2] = (-(2.0**-60), 1.5 * 2.0**-60), 2.0**-66
    for n in (1, 5, 20):
        assert_same_bits(fast(isa, x[:n], ops.pack(w[:1], format=name)), np.zeros((n, 1), "f4"))


@on_units("f16", "f32")
def test_error_is_that_of_a_float_sum(isa: str, name: str) -> None:
    """Root mean square of the errors at most 4 times that of numpy's matrix product."""
    rng = np.random.default_rng(5)
    for K in (64, 512, 4096):
        x, w = (rng.standard_normal((64, K), np.float32) for _ in range(2))
        packed = ops.pack(w, format=name)
        w = ops.dequantize(packed)
        exact = x.astype(np.float64) @ w.astype(np.float64).T
        error = np.sqrt(np.mean((fast(isa, x, packed) - exact) ** 2))
        assert error <= 4 * np.sqrt(np.mean((x @ w.T - exact) ** 2))


@on_units(*FLOAT)
def test_large_values(isa: str, name: str) -> None:
    """Whatever is finite stays so where the sum does: no first plane of several is infinity."""
    most = np.finfo(np.float16 if name == "f16" else np.float32).max
    w = np.full((3, 40), most if name != "bf16" else 2.0**127, np.float32)
    small = np.zeros((2, 40), np.float32)
    small[:, 7] = 2.0**-20, -(2.0**-100)
    check(isa, name, small, ops.pack(w, format=name))
    tiny = ops.pack(np.full((3, 40), 2.0**-24, np.float32), format=name)
    x = np.zeros((2, 40), np.float32)
    x[:, 3] = (2.0**127, 3e38) if name == "bf16" else np.finfo(np.float32).max
    check(isa, name, x, tiny)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@on_units(*FLOAT)
def test_non_finite(isa: str, name: str, bad: float) -> None:
    """They reach the token's own outputs and no other's, as in `linear`."""
    rng = np.random.default_rng(7)
    packed = ops.pack(rng.standard_normal((70, 40), np.float32), format=name)
    for n in (2, 20):
        x = rng.standard_normal((n, 40), np.float32)
        x[1, 3] = bad
        y = fast(isa, x, packed)
        assert not np.isfinite(y[1]).any()
        assert np.isfinite(np.delete(y, 1, 0)).all()


@pytest.mark.parametrize("name", FLOAT)
def test_deterministic_is_the_default(name: str) -> None:
    """It is also what units without bf16 products do anyway."""
    rng = np.random.default_rng(8)
    packed = ops.pack(rng.standard_normal((70, 90), np.float32), format=name)
    x = rng.standard_normal((20, 90), np.float32)
    expected = reference_linear(x, packed)
    assert_same_bits(ops.linear(x, packed), expected)
    for isa in _native.isas():
        y = ops.linear(x, packed, isa=isa, deterministic=False)
        if is_fast(isa, name):
            assert (y != expected).any()
        else:
            assert_same_bits(y, expected)


@pytest.mark.parametrize("name", INTEGER)
def test_integer_formats_have_one_arithmetic(name: str) -> None:
    packed = ops.quantize(np.random.default_rng(1).standard_normal((64, 64)), name)
    x = np.ones((20, 64), np.float32)
    assert_same_bits(ops.linear(x, packed, deterministic=False), ops.linear(x, packed))


MODELS = ("llama-bf16", "llama-f32")


@pytest.mark.parametrize("recipe", MODELS)
def test_models(recipe: str, checkpoint: Callable[[str], Path]) -> None:
    """A model of floats is fast where the unit is, in its layers, and near exact; by default one of
    bf16 alone, and on a matrix unit alone."""
    model = loading.load(checkpoint(recipe))
    tokens = np.random.default_rng(9).integers(0, 256, 40).tolist()
    exact = Engine(model, threads=2, deterministic=True, kv_dtype="f32")
    assert not exact.fast
    expected = exact.logits([tokens])[0]
    for isa in _native.isas():
        engine = Engine(model, threads=2, isa=isa, kv_dtype="f32", deterministic=False)
        assert engine.fast == is_fast(isa, model.format)
        by_default = engine.fast and model.format == "bf16" and isa not in PAIRS
        assert Engine(model, isa=isa).fast == by_default
        got = engine.logits([tokens])[0]
        rounded = 0.05 if recipe.endswith("bf16") else 1e-5
        assert np.abs(got - expected).max() <= rounded * np.abs(expected).max()
        assert (got != expected).any() == engine.fast


def test_integer_models_are_not_fast(checkpoint: Callable[[str], Path]) -> None:
    for recipe, format in (("bitnet-multiply", None), ("llama-bf16", "i8")):
        assert not Engine(loading.load(checkpoint(recipe), format=format), deterministic=False).fast


@pytest.mark.skipif(not LAYOUTS, reason="needs a unit with bf16 products")
def test_planes_must_be_of_the_format() -> None:
    """The core refuses a layer that would read planes made for another format."""
    program, x, y = _native.Program(), Value(64), Value(64)
    made, read = (ops.pack(np.ones((64, 64), np.float32), format=f) for f in ("bf16", "f32"))
    numbers = {id(w): program.weight(w.native()) for w in (made, read)}
    numbers[id(x)] = program.value(program.buffer(64), 64, planes_for=numbers[id(made)])
    numbers[id(y)] = program.value(program.buffer(64), 64)
    with pytest.raises(ValueError, match=r"layer \(linear\): x: has bf16 planes for another"):
        program.add(LinearOp(name="layer", output=y, x=x, weight=read), numbers)
    program.add(LinearOp(name="layer", output=y, x=x, weight=made), numbers)


def test_bad_requests() -> None:
    packed = ops.pack(np.ones((4, 8), np.float32), format="bf16")
    failure(
        lambda: ops.linear(np.ones((2, 7), np.float32), packed, deterministic=False),
        RequestError, "7", "8",
    )  # fmt: skip
    with pytest.raises(NonFiniteError):
        ops.pack(np.full((4, 8), np.nan, np.float32), format="bf16")
