"""Experts: the words of `GraphBuilder` against their definition."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.formats import Experts
from sterna.graph import GraphBuilder, Heads
from sterna.graph.ops import EmbedOp

TOKENS, EXPERTS, CHOSEN = 170, 5, 3
HIDDEN, WIDTH = 160, 96  # neither fills tiles
#: Formats of every arithmetic: floats, a scale for each row, groups of both kinds.
ARITHMETICS = ("f32", "bf16", "i8", "t5", "i2:g32", "q4_0", "q4_1", "mxfp4", "pot4")


def values(*shape: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)


@lru_cache
def rows() -> np.ndarray:
    return values(TOKENS, HIDDEN, seed=0) * np.float32(HIDDEN**0.5)


@lru_cache
def stacked(name: str, count: int, M: int, K: int, seed: int) -> Experts:
    each = (ops.quantize(values(M, K, seed=seed + i), name) for i in range(count))
    return Experts.of(count, each, name)


@lru_cache
def router(kind: str) -> np.ndarray:
    """Its weights; those with ties give the experts logits of which many are equal."""
    w = values(EXPERTS, HIDDEN, seed=90)
    return w if kind == "apart" else w[[0, 1, 0, 1, 0]]


def finished(g: GraphBuilder, x: Any) -> _native.Program:
    """Logits are the value."""
    g.linear(g.select(x), ops.pack(np.eye(TOKENS, x.width, dtype=np.float32), format="f32"), "head")
    return g.graph.compile()


def run(
    program: _native.Program, width: int, isa: str = "scalar", threads: int = 1, cut: int = TOKENS
) -> np.ndarray:
    """float32 [TOKENS, width], in steps of so many tokens."""
    found, cache = [], _native.KvCache([(1, 16)], 4, "f32")
    for start in range(0, TOKENS, cut):
        tokens = np.arange(start, min(start + cut, TOKENS), dtype=np.int32)
        span = (start, len(tokens), len(tokens), np.arange(3, dtype=np.int32))
        found.append(program.run(cache, tokens, [span], isa, threads)[0][:, :width].copy())
    return np.concatenate(found)


def graph() -> tuple[GraphBuilder, Any]:
    g = GraphBuilder(Heads(1, 1, 16))
    return g, g.add(EmbedOp(weight=ops.pack(rows(), format="f32")))


@lru_cache
def shares_program(kind: str, of_all: bool) -> _native.Program:
    g, x = graph()
    logits = g.linear(x, ops.pack(router(kind), format="f32"), "router")
    return finished(g, g.route(logits, EXPERTS, CHOSEN, "router", of_all).shares)


@lru_cache
def layer_program(name: str, kind: str) -> _native.Program:
    """x + the experts' linear layer with a bias."""
    g, x = graph()
    logits = g.linear(x, ops.pack(router(kind), format="f32"), "router")
    at = g.spread(x, g.route(logits, EXPERTS, CHOSEN, "router"), "spread")
    weights = stacked(name, EXPERTS, HIDDEN, HIDDEN, 1)
    y = g.linear(at, weights, "experts", bias=values(EXPERTS, HIDDEN, seed=2))
    return finished(g, g.combine(y, x, "experts"))


def chosen(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """(experts of each token, ascending; logits): the largest, of equal ones the first."""
    logits = ops.linear(rows(), ops.pack(router(kind), format="f32"))
    return np.sort(np.argsort(-logits, axis=1, kind="stable")[:, :CHOSEN], axis=1), logits


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("kind", ["apart", "ties"])
def test_shares_are_a_softmax(kind: str, of_all: bool) -> None:
    """Over the chosen experts or all, whichever way the tokens are cut."""
    experts, logits = chosen(kind)
    power = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    best = np.take_along_axis(power, experts, 1)
    wanted = best / (power if of_all else best).sum(1, keepdims=True)
    got = run(shares_program(kind, of_all), CHOSEN)
    np.testing.assert_allclose(got, wanted, rtol=2e-7)
    assert_same_bits(run(shares_program(kind, of_all), CHOSEN, threads=2, cut=7), got)
    if kind == "ties":
        assert (experts != np.sort(np.argsort(logits, axis=1)[:, ::-1][:, :CHOSEN])).any()


@pytest.mark.parametrize("kind", ["apart", "ties"])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ARITHMETICS)
def test_layers_of_experts(name: str, isa: str, kind: str) -> None:
    """Each row has the bits that its expert's weight alone gives it; the sum is in their order."""
    experts, _ = chosen(kind)
    weights, bias = stacked(name, EXPERTS, HIDDEN, HIDDEN, 1), values(EXPERTS, HIDDEN, seed=2)
    shares = run(shares_program(kind, False), CHOSEN)
    each = [ops.linear(rows(), weight) + bias[i] for i, weight in enumerate(weights)]
    total = np.zeros((TOKENS, HIDDEN), np.float32)
    for j in range(CHOSEN):
        rows_of = np.stack([each[e][n] for n, e in enumerate(experts[:, j])])
        total = total + shares[:, j : j + 1] * rows_of
    wanted = rows() + total
    for threads, cut in ((1, TOKENS), (2, TOKENS), (3, 17), (2, 1)):
        got = run(layer_program(name, kind), HIDDEN, isa, threads, cut)
        np.testing.assert_array_equal(got, wanted, f"{threads} threads, {cut} tokens a step")


@pytest.mark.parametrize("name", ARITHMETICS)
def test_one_expert_is_a_dense_ffn(name: str) -> None:
    """gate, up, activation, norm and rounding on rows of experts, to the bit."""
    gate_up, down = stacked(name, 1, 2 * WIDTH, HIDDEN, 5), stacked(name, 1, HIDDEN, WIDTH, 6)
    norm = np.abs(values(WIDTH, seed=7)) + 1
    found = []
    for of_experts in (True, False):
        g, x = graph()
        h = x
        if of_experts:
            logits = g.linear(x, ops.pack(values(1, HIDDEN, seed=8), format="f32"), "router")
            h = g.spread(x, g.route(logits, 1, 1, "router"), "spread")
        h = g.linear(h, gate_up if of_experts else gate_up[0], "gate_up")
        h = g.norm(g.glu(h, "silu", "act"), norm, 1e-5, "norm")
        if of_experts:
            y = g.combine(g.linear(h, down, "down"), x, "combine")
        else:
            y = g.linear(h, down[0], "down", residual=x)
        found.append(run(finished(g, y), HIDDEN, threads=2))
    assert_same_bits(*found)


def test_rows_of_two_routes_are_not_mixed() -> None:
    """A route ends before the next begins: the rows of experts are those of the last."""
    g, x = graph()
    weight = ops.pack(router("apart"), format="f32")
    first = g.route(g.linear(x, weight, "router"), EXPERTS, 2, "router")
    at = g.spread(x, first, "spread")
    g.route(g.linear(x, weight, "router"), EXPERTS, 2, "router")
    with pytest.raises(ValueError, match="before the next"):
        g.glu(at, "silu", "act")
    with pytest.raises(ValueError, match="last route"):
        g.spread(x, first, "spread")
    with pytest.raises(ValueError, match="rows of tokens"):
        g.combine(x, None, "combine")


def test_logits_that_are_not_finite_are_named() -> None:
    """Where a router gives NaN, experts are chosen all the same, and the run ends with its name."""
    g, x = graph()
    weight = router("apart").copy()
    weight[2] = 3e38
    at = g.spread(
        x,
        g.route(g.linear(x, ops.pack(weight, format="f32"), "r"), EXPERTS, 3, "the router"),
        "spread",
    )
    program = finished(g, g.combine(at, x, "combine"))
    with pytest.raises(FloatingPointError, match="the router"):
        run(program, HIDDEN)
