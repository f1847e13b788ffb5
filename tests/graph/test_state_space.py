"""A layer of Mamba-2: a convolution with a bias within a row, a state space, a gate before a norm.

The oracle is numpy in float64. Bits are those of the scalar unit for every unit, thread count, way
to cut a prompt into steps, and company in a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits
from recurrent_steps import run_in_steps

from sterna import _native, ops
from sterna.graph import GraphBuilder, Heads, RecurrentHeads
from sterna.graph.heads import gate_heads
from sterna.graph.ops import ConvOp, EmbedOp, GatedOp, ScaleOp, StateSpaceOp

N = 40  # tokens: two blocks of 16 of a kernel, and a rest
EPS = 1e-5
CUTS = [(N,), range(1, N + 1), (1, 3, 20, 37, N), (16, 32, 33, N)]


@dataclass(frozen=True)
class Case:
    """A layer's sizes; a row is [z | v | k | q | step], as in_proj makes it."""

    heads: RecurrentHeads
    taps: int
    limits: tuple[float, float] = (0.0, math.inf)
    gate_first: bool = True
    bias: bool = True

    @property
    def width(self) -> int:
        return self.heads.v_width + self.heads.width + self.heads.v_heads


CASES = {
    "plain": Case(RecurrentHeads(1, 2, 16, 16), 4),
    "grouped": Case(RecurrentHeads(2, 6, 24, 40), 4, (0.1, 1.5)),
    "odd": Case(RecurrentHeads(2, 4, 7, 5), 2, gate_first=False, bias=False),
    "one tap": Case(RecurrentHeads(1, 3, 1, 3), 1, (0.7, 0.7)),
    "published": Case(RecurrentHeads(1, 2, 128, 64), 4),
}


@dataclass(frozen=True)
class Layer:
    """A layer's tensors, and a row for each token, and some more where a row is wider."""

    rows: np.ndarray
    taps: np.ndarray
    bias: np.ndarray
    rate: np.ndarray
    step_bias: np.ndarray
    skip: np.ndarray
    norm: np.ndarray


@lru_cache
def layer(name: str) -> Layer:
    case, rng = CASES[name], np.random.default_rng(len(name))
    h = case.heads
    rows = rng.standard_normal((max(N, case.width), case.width)).astype(np.float32)
    rows[:, -h.v_heads :] *= 3  # decays from 0 to nearly 1
    rows[::9, -1], rows[4::9, -1] = 90.0, -90.0
    arrays = [rng.standard_normal(size) for size in (h.width, h.v_heads, h.v_heads)]
    bias, step_bias, skip = (x.astype(np.float32) for x in arrays)
    return Layer(
        rows, rng.standard_normal((h.width, case.taps)).astype(np.float32), bias,
        -rng.uniform(0.01, 8, h.v_heads).astype(np.float32), step_bias, skip,
        rng.uniform(0.5, 1.5, h.v_width).astype(np.float32),
    )  # fmt: skip


def write(g: GraphBuilder, name: str, rows: np.ndarray, part: str = "norm") -> None:
    """The row behind the convolution, what the state space makes of it, or that gated."""
    case, of = CASES[name], layer(name)
    h, z = case.heads, case.heads.v_width
    x = g.add(EmbedOp(weight=ops.pack(rows, format="f32")))
    x = g.add(
        ConvOp(
            name="conv1d",
            x=x,
            taps=np.ascontiguousarray(of.taps.T),
            bias=of.bias if case.bias else None,
            column=z,
        )
    )
    if part != "conv":
        row = x
        x = g.add(
            StateSpaceOp(
                name="layer 7",
                x=row,
                heads=h,
                column=z,
                step=z + h.width,
                rate=of.rate,
                bias=of.step_bias,
                skip=of.skip,
                least=case.limits[0],
                most=case.limits[1],
            )
        )
    if part == "norm":
        x = g.add(
            GatedOp(
                name="norm",
                x=x,
                gates=row,
                column=0,
                stride=z // h.k_heads,
                heads=gate_heads(x.width, h.k_heads),
                activation="silu",
                norm=of.norm,
                eps=EPS,
                first=case.gate_first,
            )
        )
    eye = np.eye(len(rows), x.width, dtype=np.float32)
    g.linear(g.select(x), ops.pack(eye, format="f32"), "lm_head")


@lru_cache
def program(name: str, part: str) -> _native.Program:
    g = GraphBuilder(Heads(1, 1, 16))
    write(g, name, layer(name).rows, part)
    return g.graph.compile()


def run(
    name: str, part: str, isa: str, threads: int = 1, cuts: Iterable[int] = (N,), company: int = 0
) -> np.ndarray:
    """float32 [N, width of the part]: in steps that end so, with so many other sequences."""
    width = CASES[name].width if part == "conv" else CASES[name].heads.v_width
    return run_in_steps(program(name, part), width, N, isa, threads, cuts, company)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def expected(name: str, part: str) -> np.ndarray:
    """The same in float64, token by token."""
    case, of = CASES[name], layer(name)
    h, rows = case.heads, of.rows[:N].astype(np.float64)
    z, xbc, step = np.split(rows, [h.v_width, h.v_width + h.width], axis=1)
    before = np.concatenate([np.zeros((case.taps - 1, h.width)), xbc])
    xbc = sum(before[i : i + N] * of.taps[:, i] for i in range(case.taps)) + of.bias * case.bias
    xbc = silu(xbc)
    if part == "conv":
        return np.concatenate([z, xbc, step], axis=1)
    v, k, q = np.split(xbc, [h.v_width, h.v_width + h.k_heads * h.k_dim], axis=1)
    v = v.reshape(N, h.v_heads, h.v_dim)
    k, q = (x.reshape(N, h.k_heads, h.k_dim) for x in (k, q))
    size = np.clip(np.logaddexp(0, step + of.step_bias), *case.limits)
    out = np.zeros(v.shape)
    for head in range(h.v_heads):
        group, state = head // (h.v_heads // h.k_heads), np.zeros((h.k_dim, h.v_dim))
        for t in range(N):
            state *= np.exp(of.rate[head] * size[t, head])
            state += np.outer(k[t, group], size[t, head] * v[t, head])
            out[t, head] = state.T @ q[t, group] + of.skip[head] * v[t, head]
    if part == "norm":
        out, gate = (x.reshape(N, h.k_heads, -1) for x in (out, silu(z)))
        out = out * gate if case.gate_first else out
        out = out / np.sqrt((out * out).mean(-1, keepdims=True) + EPS)
        out = out * of.norm.reshape(h.k_heads, -1)
        out = out if case.gate_first else out * gate
    return out.reshape(N, h.v_width)


PARTS = ("conv", "space", "norm")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", CASES)
def test_against_numpy(name: str, part: str) -> None:
    """Float rounding only: of sums of k_dim products, over as many tokens."""
    got, wanted = run(name, part, "scalar"), expected(name, part)
    bound = 2.0**-24 * 8 * np.sqrt(CASES[name].heads.k_dim * N)
    if part == "norm":  # where a group's values are all small, their errors are not
        bound *= 30
    assert np.abs(got - wanted).max() <= bound * np.abs(wanted).max()


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", CASES)
def test_bits(name: str, part: str) -> None:
    """One result for every unit, thread count, way to cut into steps, and company."""
    wanted = run(name, part, "scalar")
    for isa in ISAS:
        for threads, cuts in ((1, CUTS[0]), (3, CUTS[1]), (1, CUTS[2]), (3, CUTS[3])):
            assert_same_bits(run(name, part, isa, threads, cuts), wanted)
        assert_same_bits(run(name, part, isa, 2, CUTS[2], company=3), wanted)


@pytest.mark.parametrize("name", CASES)
def test_drafts_go_on_in_a_state_of_their_own(name: str) -> None:
    """The sequence's own is left as it is before them; both as steps without drafts leave them."""
    p, cache = program(name, "norm"), _native.KvCache([(1, 16)], 8, "f32")
    pages, tokens = np.arange(2, dtype=np.int32), np.arange(N, dtype=np.int32)

    def step(state: _native.State, start: int, end: int, *ahead: tuple[int, int, object]) -> object:
        span = (start, end - start, end - start, pages)
        run = p.run(cache, tokens[start:end], [span], "scalar", 1, states=[state], ahead=ahead)
        return run[0].copy()

    def read(state: _native.State) -> bytes:
        out = np.empty(state.nbytes, np.uint8)
        state.read(out)
        return out.tobytes()

    mine, drafts, before, behind = (_native.State(p.state_bytes) for _ in range(4))
    for state in (mine, before, behind):
        step(state, 0, 9)
    wanted = step(behind, 9, 30)
    step(before, 9, 13)
    assert_same_bits(step(mine, 9, 30, (0, 17, drafts)), wanted)
    assert (read(mine), read(drafts)) == (read(before), read(behind))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("column", [40, 200, -1], ids=["z", "v", "step"])
@pytest.mark.parametrize("value", [3e38, -3e38])
def test_what_is_not_finite_is_told(column: int, value: float, isa: str) -> None:
    """Infinity in a part of a row is an error that names a layer, also where a limit hides it."""
    rows = layer("grouped").rows / 4
    rows[:, column] = value
    g = GraphBuilder(Heads(1, 1, 16))
    of, case = layer("grouped"), CASES["grouped"]
    z, h = case.heads.v_width, case.heads
    x = g.add(EmbedOp(weight=ops.pack(rows, format="f32"), factor=4))
    row = g.add(
        ConvOp(name="layer 7", x=x, taps=np.ascontiguousarray(of.taps.T), bias=of.bias, column=z)
    )
    x = g.add(
        StateSpaceOp(
            name="layer 7",
            x=row,
            heads=h,
            column=z,
            step=z + h.width,
            rate=of.rate,
            bias=of.step_bias,
            skip=of.skip,
            least=case.limits[0],
            most=case.limits[1],
        )
    )
    x = g.add(
        GatedOp(
            name="layer 7",
            x=x,
            gates=row,
            column=0,
            stride=z // 2,
            heads=gate_heads(x.width, 2),
            activation="silu",
            norm=of.norm,
            eps=EPS,
            first=True,
        )
    )
    eye = ops.pack(np.eye(len(rows), x.width, dtype=np.float32), format="f32")
    g.linear(g.select(x), eye, "lm_head")
    p = g.graph.compile()
    state, pages = _native.State(p.state_bytes), np.arange(2, dtype=np.int32)
    cache, tokens = _native.KvCache([(1, 16)], 2, "f32"), np.arange(3, dtype=np.int32)
    with pytest.raises(FloatingPointError, match="layer 7"):
        p.run(cache, tokens, [(0, 3, 1, pages)], isa, 1, states=[state])
    assert state.position == -1


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"step": 40}, "too narrow"), ({"step": 10**6}, "too narrow"),
        ({"column": -1}, "too narrow"),
        ({"least": 1.0, "most": 0.5}, "least"), ({"least": -1.0, "most": 0.5}, "least"),
        ({"rate": np.ones(3, np.float32)}, "v_heads values"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(change: dict[str, object], rule: str) -> None:
    of, h = layer("plain"), CASES["plain"].heads
    fields = {
        "column": h.v_width, "step": h.v_width + h.width, "rate": of.rate, "bias": of.step_bias,
        "skip": of.skip, "name": "layer 7", **change,
    }  # fmt: skip
    g = GraphBuilder(Heads(1, 1, 16))
    x = g.add(EmbedOp(weight=ops.pack(of.rows, format="f32")))
    x = g.add(StateSpaceOp(x=x, heads=h, **fields))
    g.linear(g.select(x), ops.pack(np.eye(64, x.width, dtype=np.float32), format="f32"), "lm_head")
    with pytest.raises(ValueError, match=rf"layer 7 \(state_space\).*{rule}"):
        g.graph.compile()


@pytest.mark.parametrize("isa", ISAS)
def test_columns_have_factors(isa: str) -> None:
    """One rounded product for each value."""
    rng = np.random.default_rng(0)
    rows, factors = (rng.standard_normal(s).astype(np.float32) for s in ((37, 37), 37))
    g = GraphBuilder(Heads(1, 1, 16))
    x = g.add(
        ScaleOp(
            name="scale", x=g.add(EmbedOp(weight=ops.pack(rows, format="f32"))), factors=factors
        )
    )
    g.linear(g.select(x), ops.pack(np.eye(37, dtype=np.float32), format="f32"), "lm_head")
    cache, pages = _native.KvCache([(1, 16)], 1, "f32"), np.zeros(1, np.int32)
    tokens = np.arange(37, dtype=np.int32)
    got = g.graph.compile().run(cache, tokens, [(0, 37, 37, pages)], isa, 2)[0]
    assert_same_bits(got[:, :37], rows * factors)
