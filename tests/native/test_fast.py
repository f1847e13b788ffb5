"""Float layers by bf16 products of a matrix unit: how large the error may be, and that it is one
arithmetic for every number of tokens and threads.

The bound counts roundings. The activations of a bf16 layer are rounded to 8 bits, 2^-8 of them at
most. Those of f16 and f32 layers are three planes exactly, |x1| <= 2^-8 |x|, |x2| <= 2^-16 |x|, as
are the weights, cut off: |w1| < 2^-7 |w|, |w2| < 2^-15 |w|. The products left out, w1 x2, w2 x1 and
w2 x2, are below 4.1 * 2^-24 of |w x|. A sum over a step of 32 k takes at most 33 roundings, and
there is one for each product of planes (6 at most). What is below 2^-126 counts as 0.
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
from sterna import _native, loading
from sterna.engine import Engine
from sterna.errors import NonFiniteError, RequestError
from sterna.graph import Value
from sterna.graph.ops import LinearOp

# Such products are an instruction of the matrix unit: there is nothing to run without one, and
# what `deterministic=False` means there (the same bits as True) is tested on every machine below.
UNITS = [isa for isa in _native.isas() if _native.fast_layouts(isa)]
needs_unit = pytest.mark.skipif(not UNITS, reason="needs a unit with bf16 products (amx)")
PRODUCTS = {"bf16": 1, "f16": 5, "f32": 6}
LEAST = 2.0**-126  # a normal float


def rounding_bound(name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """The tolerance of each y [N, M] against the exact sum."""
    K = x.shape[1]
    rounded = 2.0**-8 if name == "bf16" else 4.1 * 2.0**-24
    steps = -(-K // 32) * PRODUCTS[name]
    x, w = np.abs(x.astype(np.float64)), np.abs(w.astype(np.float64))
    # Planes that count as 0 are lost times the other factor; and each product and sum at its own.
    lost = LEAST * (x.sum(1)[:, None] + w.sum(1)[None, :] + PRODUCTS[name] * 2.0 * K)
    return (rounded + (steps + 33) * 2.0**-24 * 1.01) * (x @ w.T) + 4 * lost


def fast(x: np.ndarray, packed: ops.PackedWeight, threads: int = 1) -> np.ndarray:
    """The product by the unit's bf16 products."""
    return ops.linear(x, packed, isa=UNITS[-1], threads=threads, deterministic=False)


def check(name: str, x: np.ndarray, packed: ops.PackedWeight) -> np.ndarray:
    """The error is within the bound."""
    y, w = fast(x, packed), ops.dequantize(packed)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    assert (np.abs(y - exact) <= rounding_bound(name, x, w)).all()
    return y


@needs_unit
@pytest.mark.parametrize("shape", [*SHAPES, (300, 1000, 17), (130, 257, 530)], ids=str)
@pytest.mark.parametrize("name", FLOAT)
def test_error_and_one_arithmetic(name: str, shape: tuple[int, int, int]) -> None:
    """Within the bound, denormals included; the same bits for any threads and any part of x."""
    M, K, N = shape
    rng = np.random.default_rng([M, K, N])
    for kind in ("random", "lowest", "highest", "stripes"):
        packed, x = weights(name, M, K, kind, rng), activations(N, K, kind, rng)
        y = check(name, x, packed)
        for threads in (2, 3):
            assert_same_bits(fast(x, packed, threads), y)
        for n in {1, 2, 15, 16, 17, 33, N // 2} & set(range(1, N + 1)):
            assert_same_bits(fast(x[:n], packed), y[:n])
            assert_same_bits(fast(x[N - n :], packed, 2), y[N - n :])


def unit_sums(x: np.ndarray, w: np.ndarray) -> np.ndarray:
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


@needs_unit
@pytest.mark.parametrize(
    "shape", [(70, 31, 1), (130, 257, 1), (64, 1000, 3), (80, 448, 20)], ids=str
)
@pytest.mark.parametrize("name", ["bf16", "pot8", "pot16"])
def test_one_token_and_many_are_sums_of_the_unit(name: str, shape: tuple[int, int, int]) -> None:
    """One token takes vector units: bit for bit what the matrix unit and its description say."""
    M, K, N = shape
    rng = np.random.default_rng([M, K])
    packed = ops.quantize(rng.standard_normal((M, K), np.float32), name)
    x = rng.standard_normal((N, K), np.float32)
    levels, scale = ops.unpack(packed)
    sums = unit_sums(ops.dequantize(ops.pack(x, format="bf16")), levels)
    y = sums if scale is None or not np.size(scale) else sums * np.float32(scale).reshape(1, -1)
    assert_same_bits(fast(x, packed), y)
    assert_same_bits(fast(x[:1], packed), y[:1])


@needs_unit
@pytest.mark.parametrize("name", ["f16", "f32"])
def test_error_is_that_of_a_float_sum(name: str) -> None:
    """Root mean square of the errors at most 4 times that of numpy's matrix product."""
    rng = np.random.default_rng(5)
    for K in (64, 512, 4096):
        x, w = (rng.standard_normal((64, K), np.float32) for _ in range(2))
        packed = ops.pack(w, format=name)
        w = ops.dequantize(packed)
        exact = x.astype(np.float64) @ w.astype(np.float64).T
        error = np.sqrt(np.mean((fast(x, packed) - exact) ** 2))
        assert error <= 4 * np.sqrt(np.mean((x @ w.T - exact) ** 2))


@needs_unit
@pytest.mark.parametrize("name", FLOAT)
def test_large_values(name: str) -> None:
    """Whatever is finite stays so where the sum does: no first plane of several is infinity."""
    most = np.finfo(np.float16 if name == "f16" else np.float32).max
    w = np.full((3, 40), most if name != "bf16" else 2.0**127, np.float32)
    small = np.zeros((2, 40), np.float32)
    small[:, 7] = 2.0**-20, -(2.0**-100)
    check(name, small, ops.pack(w, format=name))
    tiny = ops.pack(np.full((3, 40), 2.0**-24, np.float32), format=name)
    x = np.zeros((2, 40), np.float32)
    x[:, 3] = (2.0**127, 3e38) if name == "bf16" else np.finfo(np.float32).max
    check(name, x, tiny)


@needs_unit
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", FLOAT)
def test_non_finite(name: str, bad: float) -> None:
    """They reach the token's own outputs and no other's, as in `linear`."""
    rng = np.random.default_rng(7)
    packed = ops.pack(rng.standard_normal((70, 40), np.float32), format=name)
    for n in (2, 20):
        x = rng.standard_normal((n, 40), np.float32)
        x[1, 3] = bad
        y = fast(x, packed)
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
    for isa in set(_native.isas()) - set(UNITS):
        assert_same_bits(ops.linear(x, packed, isa=isa, deterministic=False), expected)
    for isa in UNITS:
        assert (ops.linear(x, packed, isa=isa, deterministic=False) != expected).any()


@pytest.mark.parametrize("name", INTEGER)
def test_integer_formats_have_one_arithmetic(name: str) -> None:
    packed = ops.quantize(np.random.default_rng(1).standard_normal((64, 64)), name)
    x = np.ones((20, 64), np.float32)
    assert_same_bits(ops.linear(x, packed, deterministic=False), ops.linear(x, packed))


MODELS = ("llama-bf16", "llama-f32")


@pytest.mark.parametrize("recipe", MODELS)
def test_models(recipe: str, checkpoint: Callable[[str], Path]) -> None:
    """A model of floats is fast where the unit is, in its layers, and near exact; by default one of
    bf16 alone."""
    model = loading.load(checkpoint(recipe))
    tokens = np.random.default_rng(9).integers(0, 256, 40).tolist()
    exact = Engine(model, threads=2, deterministic=True, kv_dtype="f32")
    assert not exact.fast
    expected = exact.logits([tokens])[0]
    for isa in _native.isas():
        engine = Engine(model, threads=2, isa=isa, kv_dtype="f32", deterministic=False)
        assert engine.fast == (isa in UNITS)
        assert Engine(model, isa=isa).fast == (isa in UNITS and model.format == "bf16")
        got = engine.logits([tokens])[0]
        rounded = 0.05 if recipe.endswith("bf16") else 1e-5
        assert np.abs(got - expected).max() <= rounded * np.abs(expected).max()
        assert (got != expected).any() == engine.fast


def test_integer_models_are_not_fast(checkpoint: Callable[[str], Path]) -> None:
    for recipe, format in (("bitnet-multiply", None), ("llama-bf16", "i8")):
        assert not Engine(loading.load(checkpoint(recipe), format=format), deterministic=False).fast


@needs_unit
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
