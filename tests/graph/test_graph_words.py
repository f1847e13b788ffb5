"""Words of a graph that scale, cap, activate and add, each against numpy in float64."""

from __future__ import annotations

from collections.abc import Callable
from math import erfc

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.formats import Shadow
from sterna.graph import GraphBuilder, Heads, Value
from sterna.graph.ops import EmbedOp

WIDTH, N = 75, 128  # an odd width, and rows of the table
EPSILON = 2.0**-24


def rows(seed: int, width: int = WIDTH, spread: float = 1.0) -> np.ndarray:
    """A table float32 [N, width]."""
    rng = np.random.default_rng(seed)
    return (spread * rng.standard_normal((N, width))).astype(np.float32)


def logits(
    table: np.ndarray, write: Callable[[GraphBuilder, Value], Value], isa: str, threads: int = 1,
    factor: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """The output of `write` for the table's rows, float32 [N, its width]."""
    g = GraphBuilder(Heads(1, 1, 16))
    y = write(g, g.add(EmbedOp(weight=ops.pack(table, format="f32"), factor=factor)))
    if not g.selected:
        # Products of values and an identity: all of a sum but one are 0.
        identity = ops.pack(np.eye(N, y.width, dtype=np.float32), format="f32")
        g.linear(g.select(y), identity, "lm_head")
    cache = _native.KvCache([(1, 16)], 2, "f32")
    spans = [(0, N, N, np.arange(2, dtype=np.int32))]
    program = g.graph.compile()
    return program.run(cache, np.arange(N, dtype=np.int32), spans, isa, threads)[0][:, : y.width]


def check(
    table: np.ndarray, write: Callable[[GraphBuilder, Value], Value], expected: np.ndarray,
    tolerance: np.ndarray | float, factor: float = 1.0,
) -> None:  # fmt: skip
    """Within the tolerance of what is expected, and the same bits on all units and threads."""
    first = logits(table, write, ISAS[0], factor=factor)
    assert (abs(first - expected) <= tolerance).all()
    assert np.std(expected) > 1e4 * np.median(tolerance), "a tolerance that would hide anything"
    for isa in ISAS:
        for threads in (1, 3):
            assert_same_bits(logits(table, write, isa, threads, factor), first)


def gelu(x: np.ndarray) -> np.ndarray:
    """x times the normal distribution below x."""
    return x * np.vectorize(erfc)(-x / np.sqrt(2)) / 2


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """Its approximation, in the form in which nothing cancels."""
    return x / (1 + np.exp(-np.sqrt(8 / np.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": gelu,
    "gelu_pytorch_tanh": gelu_tanh,
}


def relative_error(name: str, gate: np.ndarray) -> np.ndarray:
    """Of an activation as lanes.h bounds it, and of the product with `up`."""
    if name == "silu":  # two of exp, of its argument one, and three more
        return (8 + abs(gate)) * EPSILON
    if name == "gelu_pytorch_tanh":
        return 2.0**-21 * (2 + abs(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
    return np.full_like(gate, 4 * EPSILON if name == "relu2" else 2.0**-20 + EPSILON)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    """Gates from tiny ones to -8 and 8."""
    table = rows(1, 2 * WIDTH, 2.0)
    table[0, :WIDTH] = np.linspace(-8, 8, WIDTH)
    table[1, :WIDTH] = np.geomspace(1e-30, 1, WIDTH)
    table[2, :WIDTH] = -table[1, :WIDTH]
    table[3, :4] = 0.0, -0.0, 1e-40, -1e-40
    gate, up = np.split(table.astype(np.float64), 2, axis=1)
    expected = ACTIVATIONS[name](gate) * up
    tolerance = relative_error(name, gate) * abs(expected) + 1e-44  # and what denormals lose
    check(table, lambda g, x: g.glu(x, name, "act"), expected, tolerance)


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize("gate", [20.0, -20.0, 1e4, -1e4, 1e18, -1e18])
def test_activations_of_large_gates(name: str, gate: float) -> None:
    """The result is the gate or its square, or negligible in comparison."""
    table = np.ones((N, 2 * WIDTH), np.float32)
    table[:, :WIDTH] = gate
    expected = (gate**2 if name == "relu2" else gate) if gate > 0 else 0.0
    if name == "silu" and gate == -20:
        expected = gate * np.exp(gate)  # which is 4e-8
    for isa in ISAS:
        error = abs(logits(table, lambda g, x: g.glu(x, name, "act"), isa) - expected).max()
        assert error <= 2.0**-19 * abs(expected) + 2.0**-120 * abs(gate)


def test_an_unknown_activation() -> None:
    """It is refused by name."""
    with pytest.raises(ValueError, match="gelu_pytorch_tanh"):
        logits(rows(1, 2 * WIDTH), lambda g, x: g.glu(x, "mish", "act"), ISAS[0])


def test_the_embedding_is_scaled() -> None:
    """One rounding."""
    table = rows(2)
    expected = table * np.float32(9.7)
    assert_same_bits(logits(table, lambda g, x: x, ISAS[0], factor=9.7), expected)


def test_a_norm_and_a_residual() -> None:
    """x + RMSNorm(f) w, f = x + x in another row's place."""
    table, other = rows(3), rows(4, WIDTH)[:WIDTH]
    weight = rows(5)[0]
    f = table.astype(np.float64) @ other.T.astype(np.float64)
    normed = f / np.sqrt((f**2).mean(1, keepdims=True) + 1e-5) * weight
    w = ops.pack(other, format="f32")
    # A sum of WIDTH products, and of their squares.
    size = abs(table) @ abs(other).T
    root = np.sqrt((f**2).mean(1, keepdims=True))
    tolerance = 4 * WIDTH * EPSILON * (size / root * abs(weight) + abs(normed) + abs(table))
    check(
        table,
        lambda g, x: g.norm(g.linear(x, w, "f"), weight, 1e-5, "norm", residual=x),
        table + normed,
        tolerance,
    )


@pytest.mark.parametrize("format", ["f32", "i8"])
def test_a_scaled_residual(format: str) -> None:
    """(x W^T + bias) factor + x: each step one rounding of what the layer gives alone."""
    table, bias = rows(6), rows(7)[0]
    weights = rows(8, WIDTH)[:WIDTH]
    w = ops.pack(weights, format="f32") if format == "f32" else ops.quantize(weights, format)
    alone = logits(table, lambda g, x: g.linear(x, w, "f", bias=bias), ISAS[0])
    expected = alone * np.float32(0.22) + table
    for isa in ISAS:
        for threads in (1, 3):
            got = logits(
                table,
                lambda g, x: g.linear(x, w, "f", residual=x, bias=bias, factor=0.22),
                isa,
                threads,
            )
            assert_same_bits(got, expected)


def test_capped_logits() -> None:
    """cap tanh(logit / cap), past every limit: |x / cap| from tiny to 1e20."""
    table = rows(9, N)
    table[:N] = np.geomspace(1e-30, 1e20, N * N).reshape(N, N) * np.sign(table)
    identity = ops.pack(np.eye(N, dtype=np.float32), format="f32")
    wide = table.astype(np.float64)
    expected = 5.0 * np.tanh(wide / 5.0)
    check(
        table,
        lambda g, x: g.head(g.select(x), identity, None, "lm_head", cap=5.0),
        expected,
        (2.0**-21 + 4 * EPSILON) * abs(expected) + 1e-44,
    )


def test_capped_logits_are_not_screened() -> None:
    """All rows are computed, as of the float head: what decides may be equal after rounding."""
    table = rows(10)
    packed = ops.pack(table, format="f32")
    shadow = Shadow.of(packed, 1)
    g = GraphBuilder(Heads(1, 1, 16))
    g.head(g.select(g.add(EmbedOp(weight=packed))), packed, shadow, "lm_head", cap=5.0)
    assert g.graph.head.shadow is None
