"""LayerNorm, activations without a gate, and heads that are split, against numpy in float64."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits
from row_words import EPS, TABLE, WIDTH, N, check, rows

from sterna import ops
from sterna.graph import GraphBuilder, Heads, Value
from sterna.graph.ops import EmbedOp, LayerNormOp, PositionsOp, RowwiseOp, SplitHeadsOp


@pytest.mark.parametrize("biased", [False, True])
def test_layer_norm(biased: bool) -> None:
    rng = np.random.default_rng(8)
    weight, bias = rng.standard_normal((2, WIDTH)).astype(np.float32)
    x = TABLE.astype(np.float64)
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS)
    expected = normed * weight + (bias if biased else 0)
    check(
        lambda g, x: g.add(
            LayerNormOp(name="n", x=x, weight=weight, bias=bias if biased else None, eps=EPS)
        ),
        expected,
    )


def test_add() -> None:
    """To a row that goes on by itself."""
    twice = TABLE.astype(np.float32) * 2
    weight = np.ones(WIDTH, np.float32)
    x = TABLE.astype(np.float64)
    normed = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + EPS)
    check(
        lambda g, x: g.add(
            RowwiseOp(
                name="add", x=g.add(LayerNormOp(name="n", x=x, weight=weight, eps=EPS)), residual=x
            )
        ),
        normed + x,
    )
    assert_same_bits(
        rows(lambda g, x: g.add(RowwiseOp(name="add", x=x, residual=x)), ISAS[0], 1), twice
    )


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "relu2": lambda x: np.maximum(x, 0) ** 2,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * (1 + np.vectorize(erf)(x / 2**0.5)) / 2,
    "tanh": np.tanh,
    "gelu_pytorch_tanh": lambda x: x / (1 + np.exp(-1.5957691216 * (x + 0.044715 * x**3))),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    check(lambda g, x: g.activation(x, name, "act"), ACTIVATIONS[name](TABLE.astype(np.float64)))


def test_clip() -> None:
    check(lambda g, x: g.activation(x, "clip", "act", (-2.5, 1.5)), np.clip(TABLE, -2.5, 1.5))


def test_xielu() -> None:
    """As its authors write it (arXiv 2411.13010), with the exponential below eps."""
    a, n, b, eps = 0.7, 1.3, 0.5, -1e-6
    x = TABLE.astype(np.float64)
    below = (np.expm1(np.minimum(x, eps)) - x) * n
    expected = np.where(x > 0, a * x * x, below) + b * x
    check(lambda g, x: g.activation(x, "xielu", "act", (a, n, b, eps)), expected)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("clip", ()),
        ("clip", (1.0, 0.0)),
        ("xielu", (1.0,)),
        ("silu", (1.0,)),
        ("clip", (0.0, np.inf)),
    ],
)
def test_wrong_parameters_are_refused(name: str, parameters: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match=r"act \(activation\): parameters: must"):
        rows(lambda g, x: g.activation(x, name, "act", parameters), ISAS[0], 1)


@pytest.mark.parametrize("name", ["layer_norm", *ACTIVATIONS])
def test_what_rounds_its_own_result(name: str) -> None:
    """To int8, for the layer after it: bits are those of an operation that rounds a copy."""
    rng = np.random.default_rng(10)
    weight, bias = rng.standard_normal((2, WIDTH)).astype(np.float32)
    layer = ops.quantize(rng.standard_normal((16, WIDTH)).astype(np.float32), format="i8")

    def made(g: GraphBuilder, x: Value) -> Value:
        if name == "layer_norm":
            return g.add(LayerNormOp(name="n", x=x, weight=weight, bias=bias, eps=EPS))
        return g.activation(x, name, "act")

    def kinds(copied: bool) -> list[str]:
        g = GraphBuilder(Heads(1, 1, 16))
        of = made(g, g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"))))
        g.linear(g.concatenate([of]) if copied else of, layer, "l")
        return [op.kind for op in g.graph.ops]

    own = name not in ("relu", "tanh")  # those of few rows leave it to another
    assert kinds(copied=True)[-3:] == ["copy", "rowwise", "linear"]
    assert len(kinds(copied=False)) == (3 if own else 4)
    for isa in ISAS:
        for threads in (1, 3):
            assert_same_bits(
                rows(lambda g, x: g.linear(made(g, x), layer, "l"), isa, threads),
                rows(lambda g, x: g.linear(g.concatenate([made(g, x)]), layer, "l"), isa, threads),
            )


@pytest.mark.parametrize("first", [0, 2])
def test_positions(first: int) -> None:
    table = np.random.default_rng(9).standard_normal((N + first, WIDTH)).astype(np.float32)
    check(
        lambda g, x: g.add(PositionsOp(name="wpe", x=x, table=table, first=first)),
        TABLE + table[first:],
    )


def test_positions_end() -> None:
    """A sequence that is longer than the table is refused, and so is a table of another width."""
    table = np.zeros((N, WIDTH), np.float32)
    with pytest.raises(ValueError, match="positions that the model has"):
        rows(lambda g, x: g.add(PositionsOp(name="wpe", x=x, table=table, first=1)), ISAS[0], 1)
    with pytest.raises(ValueError, match=r"wpe \(positions\): table: must have the width of x"):
        rows(
            lambda g, x: g.add(PositionsOp(name="wpe", x=x, table=table[:, 1:].copy())), ISAS[0], 1
        )


def test_unknown_activations_are_refused() -> None:
    with pytest.raises(ValueError, match=r"act \(activation\): activation: must be relu"):
        rows(lambda g, x: g.activation(x, "clamped", "act"), ISAS[0], 1)


def test_split_heads() -> None:
    """[q | k | v] of each head."""
    parts = TABLE[:, :60].reshape(N, 5, 3, 4).swapaxes(1, 2).reshape(N, 60)
    eye = ops.pack(np.eye(60, WIDTH, dtype=np.float32), format="f32")
    check(
        lambda g, x: g.add(
            SplitHeadsOp(name="split", x=g.linear(x, eye, "first"), n_heads=5, parts=3)
        ),
        parts,
    )


def test_split_groups() -> None:
    """[q q | k | v] of each pair of heads."""
    parts = TABLE[:, :60].reshape(N, 3, 4, 5)
    q, kv = parts[:, :, :2].reshape(N, 30), parts[:, :, 2:].swapaxes(1, 2).reshape(N, 30)
    eye = ops.pack(np.eye(60, WIDTH, dtype=np.float32), format="f32")
    check(
        lambda g, x: g.add(
            SplitHeadsOp(name="split", x=g.linear(x, eye, "first"), n_heads=3, parts=3, first=2)
        ),
        np.concatenate([q, kv], 1),
    )


def test_what_is_not_finite_is_named() -> None:
    weight = np.ones(WIDTH, np.float32)
    huge = np.full(WIDTH, 3e38, np.float32)

    def write(g: GraphBuilder, x: Value) -> Value:
        x = g.add(LayerNormOp(name="first", x=x, weight=huge, eps=EPS))
        return g.add(LayerNormOp(name="second", x=x, weight=weight, eps=EPS))

    with pytest.raises(FloatingPointError, match="second"):
        rows(write, ISAS[0], 1)
