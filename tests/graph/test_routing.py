"""How logits choose experts and become shares, against float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.formats import Experts
from sterna.graph import GraphBuilder, Heads, Scoring, Value
from sterna.graph import heads as graph_heads
from sterna.graph.ops import EmbedOp

TOKENS, EXPERTS, CHOSEN = 90, 16, 4
F64 = np.ndarray[Any, np.dtype[np.float64]]


@lru_cache
def logits() -> np.ndarray:
    """float32 [TOKENS, EXPERTS]; the first rows have ties, the next ones saturate."""
    found = np.random.default_rng(3).standard_normal((TOKENS, EXPERTS)).astype(np.float32) * 2
    found[:10] = np.round(found[:10])
    found[10:14] *= 30
    return found


@lru_cache
def bias() -> tuple[float, ...]:
    values = np.random.default_rng(4).standard_normal(EXPERTS).astype(np.float32)
    return tuple((values / 4).tolist())


def run(add: Callable[[GraphBuilder, Value], Value], isa: str = "scalar", **how: int) -> np.ndarray:
    """The result of `add` for the rows of logits, float32 [TOKENS, EXPERTS]."""
    g = GraphBuilder(Heads(1, 1, 16))
    x = add(g, g.add(EmbedOp(weight=ops.pack(logits(), format="f32"))))
    eye = np.eye(TOKENS, EXPERTS, dtype=np.float32)
    g.linear(g.select(x), ops.pack(eye, format="f32"), "head")
    program, cache = g.graph.compile(), _native.KvCache([(1, 16)], 4, "f32")
    cut, found = how.get("cut", TOKENS), []
    for start in range(0, TOKENS, cut):
        tokens = np.arange(start, min(start + cut, TOKENS), dtype=np.int32)
        span = (start, len(tokens), len(tokens), np.arange(2, dtype=np.int32))
        made = program.run(cache, tokens, [span], isa, how.get("threads", 1))[0]
        found.append(made[:, :EXPERTS].copy())
    return np.concatenate(found)


def shares(scoring: Scoring, of_all: bool = False) -> Callable[[GraphBuilder, Value], Value]:
    """Each expert's share at its number: an expert's result is a unit vector."""
    nothing = ops.pack(np.zeros((EXPERTS, EXPERTS), np.float32), format="f32")
    units = np.eye(EXPERTS, dtype=np.float32)

    def add(g: GraphBuilder, x: Value) -> Value:
        route = g.route(x, EXPERTS, CHOSEN, "router", of_all, scoring=scoring)
        at = g.spread(x, route, "spread")
        weights = Experts.of(EXPERTS, [nothing] * EXPERTS, "zero")
        return g.combine(g.linear(at, weights, "experts", bias=units), None, "experts")

    return add


def largest(keys: F64, count: int) -> np.ndarray:
    """Numbers of the largest of each row, of equal ones the first."""
    return np.argsort(-keys, axis=1, kind="stable")[:, :count]


def expected(s: Scoring, of_all: bool) -> F64:
    """The shares of all experts, by their definition."""
    x = logits().astype(np.float64)
    if s.function == "sigmoid":
        scores = 1 / (1 + np.exp(-x))
    else:
        scores = np.exp(x - x.max(1, keepdims=True))
        scores /= scores.sum(1, keepdims=True)
    if s.bias:
        keys = scores + np.array(s.bias, np.float32)
    else:  # scores of large logits are equal, where logits still choose
        keys = x if s.best == 1 else scores
    if s.groups > 1:
        parts = np.sort(keys.reshape(TOKENS, s.groups, -1), axis=2)
        kept = largest(parts[:, :, -s.best :].sum(2), s.chosen_groups)
        open_ = np.zeros((TOKENS, s.groups), bool)
        np.put_along_axis(open_, kept, True, 1)
        keys = np.where(np.repeat(open_, EXPERTS // s.groups, axis=1), keys, -np.inf)
    chosen = largest(keys, CHOSEN)
    best = np.take_along_axis(scores, chosen, 1)
    if not of_all:
        best = best / np.maximum(best.sum(1, keepdims=True) + s.added, s.least)
    found = np.zeros((TOKENS, EXPERTS))
    np.put_along_axis(found, chosen, best * s.scale, 1)
    return found


SIGMOID = Scoring("sigmoid")
CASES = {
    "softmax": Scoring(),
    "sigmoid": SIGMOID,
    "bias": replace(SIGMOID, bias=bias(), scale=2.5, added=1e-20),
    "groups": replace(SIGMOID, bias=bias(), groups=4, chosen_groups=2, best=2, scale=2.5),
    "groups-without-bias": replace(SIGMOID, groups=4, chosen_groups=1, best=2),
    "groups-by-largest": Scoring(groups=8, chosen_groups=3, scale=16.0),
    "softmax-bias": Scoring(bias=bias(), least=0.5),
    "softmax-added": Scoring(added=0.25),
    "sigmoid-added": replace(SIGMOID, added=1e-6, least=1e-3),
}


@pytest.mark.parametrize("of_all", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_shares(case: str, of_all: bool) -> None:
    got = run(shares(CASES[case], of_all))
    wanted = expected(CASES[case], of_all)
    assert ((got != 0) == (wanted.astype(np.float32) != 0)).all()
    np.testing.assert_allclose(got, wanted, rtol=2e-7, atol=1e-44)
    if CASES[case].bias or CASES[case].groups > 1:
        plain = replace(CASES[case], bias=(), groups=1, chosen_groups=1, best=1)
        assert ((expected(plain, of_all) != 0) != (wanted != 0)).any()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["groups", "softmax-bias"])
def test_every_unit_and_division_has_the_same_bits(case: str, isa: str) -> None:
    wanted = run(shares(CASES[case]))
    for threads, cut in ((1, TOKENS), (2, 7), (3, 1)):
        assert_same_bits(run(shares(CASES[case]), isa, threads=threads, cut=cut), wanted)


def test_sparsemixer() -> None:
    """A share is a part of those experts alone that lie near, without those before it."""
    within = 0.5
    got, x = run(shares(Scoring("sparsemixer", within=within))), logits().astype(np.float64)
    wanted = np.zeros((TOKENS, EXPERTS))
    for n in range(TOKENS):
        left = x[n].copy()
        for _ in range(CHOSEN):
            e, most = int(left.argmax()), left.max()
            with np.errstate(invalid="ignore", divide="ignore"):
                far = (most - left) / np.maximum(np.abs(left), most) > within
            near = np.where(far | np.isinf(left), 0, np.exp(left - most))
            wanted[n, e], left[e] = 1 / near.sum(), -np.inf
    np.testing.assert_allclose(got, wanted, rtol=2e-7)
    assert 0.05 < (got == 1).mean() * EXPERTS / CHOSEN < 0.9


@pytest.mark.parametrize("isa", ISAS)
def test_shares_of_inputs(isa: str) -> None:
    """The share multiplies what an expert reads, and not what it makes."""
    eye = ops.pack(np.eye(EXPERTS, dtype=np.float32), format="f32")

    def add(g: GraphBuilder, x: Value) -> Value:
        route = g.route(x, EXPERTS, 2, "router", of_all=True, scoring=SIGMOID)
        h = g.spread(x, route, "spread", shared=True)
        h = g.linear(h, Experts.of(EXPERTS, [eye] * EXPERTS, "one"), "experts")
        return g.combine(g.norm(h, np.ones(EXPERTS, np.float32), 1.0, "norm"), None, "experts")

    x = logits().astype(np.float64)
    best = np.take_along_axis(1 / (1 + np.exp(-x)), np.sort(largest(x, 2), axis=1), 1)
    rows = best[:, :, None] * x[:, None]
    rows /= np.sqrt((rows**2).mean(2, keepdims=True) + 1)
    got = run(add, isa, threads=2, cut=31)
    np.testing.assert_allclose(got, rows.sum(1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("function", "tanh"), ("bias", (1.0,)), ("groups", 3), ("groups", 0),
        ("chosen_groups", 2), ("best", 3), ("scale", 0.0), ("added", -1.0), ("least", np.nan),
    ],
)  # fmt: skip
def test_wrong_fields_are_named(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"scoring\.{field}"):
        run(shares(replace(graph_heads.SOFTMAX, **{field: value})))


def test_groups_must_have_as_many_experts_as_are_chosen() -> None:
    with pytest.raises(ValueError, match=r"scoring\.chosen_groups"):
        run(shares(Scoring(groups=8, chosen_groups=1)))


def test_logits_that_are_not_finite_are_named() -> None:
    def add(g: GraphBuilder, x: Value) -> Value:
        h = g.linear(x, ops.pack(np.full((EXPERTS, EXPERTS), 3e38, np.float32), format="f32"), "h")
        return shares(CASES["groups"])(g, h)

    with pytest.raises(FloatingPointError, match="router"):
        run(add)
