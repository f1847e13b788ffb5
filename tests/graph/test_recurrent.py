"""The words of recurrent layers: causal convolutions, the gated delta rule, heads times gates.

The oracle is numpy in float64. Bits are those of the scalar unit for every unit, thread count, way
to cut a prompt into steps, and company in a step.
"""

from __future__ import annotations

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
from sterna.graph.ops import ConvOp, EmbedOp, GatedOp, RecurrenceOp, ShortConvOp

N = 70  # tokens: some blocks of 16 of a kernel, and a rest
EPS = 1e-6


@dataclass(frozen=True)
class Case:
    """A layer's sizes; its row is [q | k | v | z | b | a], with a few columns that nobody reads.

    by_row: each row of a state decays by itself. strength: of beta.
    """

    heads: RecurrentHeads
    width: int
    by_row: bool = False
    strength: float = 1.0

    @property
    def decays(self) -> int:
        """Columns of a."""
        return self.heads.v_heads * (self.heads.k_dim if self.by_row else 1)

    @property
    def columns(self) -> dict[str, int]:
        """Where the parts of a row begin, and its end."""
        h = self.heads
        z = h.width
        b = z + h.v_width
        end = b + h.v_heads + self.decays + 3
        return {"z": b - h.v_width, "b": b, "a": b + h.v_heads, "end": end + -end % 3}


CASES = {
    "plain": Case(RecurrentHeads(1, 1, 16, 16), 4),
    "grouped": Case(RecurrentHeads(2, 6, 24, 40), 4),
    "tiled, odd": Case(RecurrentHeads(2, 4, 7, 5, tiled=True), 2),
    "one tap": Case(RecurrentHeads(1, 2, 3, 33), 1),
    "many taps": Case(RecurrentHeads(1, 2, 2, 18), 16),
    "published": Case(RecurrentHeads(1, 2, 128, 128), 4),
    "by row": Case(RecurrentHeads(2, 4, 24, 40), 4, by_row=True),
    "by row, odd": Case(RecurrentHeads(1, 2, 7, 5, tiled=True), 2, by_row=True, strength=2.0),
}
# Where steps end: singly, within and past the taps, all at once.
CUTS = [(N,), range(1, N + 1), (1, 3, 20, 37, N), (16, 32, 33, N)]
NAMES = list(CASES)
SHORT = ("short conv", "short conv, bias")


def gated_channels(case: Case) -> int:
    """Channels of a row as [before | after | x]."""
    return case.columns["end"] // 3


@dataclass(frozen=True)
class Layer:
    """A layer's tensors, and the rows that it gets: one for each token, and some more where a row
    is wider, as logits are as many."""

    rows: np.ndarray
    taps: np.ndarray
    rate: np.ndarray
    bias: np.ndarray
    norm: np.ndarray


@lru_cache
def layer(name: str) -> Layer:
    case, rng = CASES[name], np.random.default_rng(NAMES.index(name))
    h = case.heads
    count = max(N, case.columns["end"])
    rows = rng.standard_normal((count, case.columns["end"])).astype(np.float32)
    rows[:, case.columns["a"] : case.columns["a"] + case.decays] *= 4  # decays from 0 to nearly 1
    rows[::9, case.columns["a"]] = 90.0
    rows[4::9, case.columns["a"]] = -90.0
    taps = rng.standard_normal((h.width, case.width)).astype(np.float32)
    rate = -rng.uniform(0.01, 16, case.decays).astype(np.float32)
    bias = rng.standard_normal(case.decays).astype(np.float32)
    return Layer(rows, taps, rate, bias, rng.uniform(0.5, 1.5, h.v_dim).astype(np.float32))


@lru_cache
def program(name: str, part: str) -> _native.Program:
    """Logits are the convolved row, what the recurrence gives, or that times its gates."""
    case, of = CASES[name], layer(name)
    h, at = case.heads, case.columns
    g = GraphBuilder(Heads(1, 1, 16))
    x = g.add(EmbedOp(weight=ops.pack(of.rows, format="f32")))
    if part in SHORT:
        channels = gated_channels(case)
        bias = of.taps[:channels, 0] if part == "short conv, bias" else None
        x = g.add(
            ShortConvOp(
                name="conv", x=x, taps=np.ascontiguousarray(of.taps[:channels].T), bias=bias
            )
        )
    else:
        x = g.add(ConvOp(name="conv1d", x=x, taps=np.ascontiguousarray(of.taps.T)))
    if part not in ("conv", *SHORT):
        row = x
        x = g.add(
            RecurrenceOp(
                name="linear_attn",
                x=row,
                heads=h,
                a=at["a"],
                b=at["b"],
                rate=of.rate,
                bias=of.bias,
                strength=case.strength,
            )
        )
    if part == "norm":
        x = g.add(
            GatedOp(
                name="norm",
                x=x,
                gates=row,
                column=at["z"],
                stride=h.v_dim,
                heads=gate_heads(x.width, h.v_heads),
                activation="silu",
                norm=of.norm,
                eps=EPS,
            )
        )
    elif part == "sigmoid":
        x = g.add(
            GatedOp(
                name="gate",
                x=x,
                gates=row,
                column=at["z"],
                stride=h.v_dim,
                heads=gate_heads(x.width, h.v_heads),
                activation="sigmoid",
            )
        )
    eye = np.eye(len(of.rows), x.width, dtype=np.float32)
    g.linear(g.select(x), ops.pack(eye, format="f32"), "lm_head")
    return g.graph.compile()


def run(
    name: str, part: str, isa: str, threads: int = 1, cuts: Iterable[int] = (N,), company: int = 0
) -> np.ndarray:
    """float32 [N, width of the part]: in steps that end so, with so many other sequences."""
    width = CASES[name].columns["end"] if part == "conv" else CASES[name].heads.v_width
    width = gated_channels(CASES[name]) if part in SHORT else width
    return run_in_steps(program(name, part), width, N, isa, threads, cuts, company)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def expected(name: str, part: str) -> np.ndarray:
    """The same in float64, token by token."""
    case, of = CASES[name], layer(name)
    h, at, rows = case.heads, case.columns, of.rows[:N].astype(np.float64)
    taps = of.taps.astype(np.float64)
    if part in SHORT:
        n = gated_channels(case)
        before, after, x = np.split(rows, 3, axis=1)
        x = np.concatenate([np.zeros((case.width - 1, n)), before * x])
        bias = taps[:n, 0] if part == "short conv, bias" else 0.0
        return after * (sum(x[i : i + N] * taps[:n, i] for i in range(case.width)) + bias)
    x = np.concatenate([np.zeros((case.width - 1, h.width)), rows[:, : h.width]])
    qkv = silu(sum(x[i : i + N] * taps[:, i] for i in range(case.width)))
    if part == "conv":
        return np.concatenate([qkv, rows[:, h.width :]], axis=1)
    q, k, v = np.split(qkv, [h.k_heads * h.k_dim, 2 * h.k_heads * h.k_dim], axis=1)
    q, k = (y.reshape(N, h.k_heads, h.k_dim) for y in (q, k))
    q, k = (y / np.sqrt((y * y).sum(-1, keepdims=True) + 1e-6) for y in (q, k))
    v = v.reshape(N, h.v_heads, h.v_dim)
    a, b = (rows[:, at[n] : at[n] + count] for n, count in (("a", case.decays), ("b", h.v_heads)))
    decay = np.exp(of.rate * np.logaddexp(0, a + of.bias)).reshape(N, h.v_heads, -1, 1)
    beta = case.strength / (1 + np.exp(-b))
    out = np.zeros((N, h.v_heads, h.v_dim))
    for head in range(h.v_heads):
        source = head % h.k_heads if h.tiled else head // (h.v_heads // h.k_heads)
        state = np.zeros((h.k_dim, h.v_dim))
        for t in range(N):
            key = k[t, source]
            state = state * decay[t, head]
            state += np.outer(key, beta[t, head] * (v[t, head] - state.T @ key))
            out[t, head] = state.T @ q[t, source] / np.sqrt(h.k_dim)
    z = rows[:, at["z"] : at["b"]].reshape(out.shape)
    if part == "norm":
        rms = np.sqrt((out * out).mean(-1, keepdims=True) + EPS)
        out = out / rms * of.norm * silu(z)
    elif part == "sigmoid":
        out = out / (1 + np.exp(-z))
    return out.reshape(N, h.v_width)


PARTS = ("conv", *SHORT, "recurrence", "norm", "sigmoid")


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", NAMES)
def test_against_numpy(name: str, part: str) -> None:
    """Float rounding only: of sums of k_dim products, over as many tokens."""
    got, wanted = run(name, part, "scalar"), expected(name, part)
    size = np.abs(wanted).max()
    bound = 2.0**-24 * 8 * np.sqrt(CASES[name].heads.k_dim * N)
    if part == "norm":  # where a head's values are all small, their errors are not
        bound *= 30
    assert np.abs(got - wanted).max() <= bound * size


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", NAMES)
def test_bits(name: str, part: str) -> None:
    """One result for every unit, thread count, way to cut into steps, and company."""
    wanted = run(name, part, "scalar")
    for isa in ISAS:
        for threads in (1, 3):
            for cuts in CUTS:
                assert_same_bits(run(name, part, isa, threads, cuts), wanted)
        assert_same_bits(run(name, part, isa, 2, CUTS[2], company=3), wanted)


def test_exponentials() -> None:
    """Each is the float next to e^x."""
    x = np.linspace(-80, 80, 10001, dtype=np.float32)
    wanted = np.exp(x.astype(np.float64))
    got = _native.exponentials(x)
    assert got.dtype == np.float32
    assert np.abs(got / wanted - 1).max() <= 2.0**-24 * 1.001


def test_a_state_is_of_a_position() -> None:
    """A step takes a state of its own begin, or any at 0, and a failed one leaves it of none."""
    name = "plain"
    p, cache = program(name, "norm"), _native.KvCache([(1, 16)], 8, "f32")
    pages = np.arange(2, dtype=np.int32)
    state, other = _native.State(p.state_bytes), _native.State(p.state_bytes)

    def step(start: int, count: int, state: _native.State, token: int = 0) -> np.ndarray:
        tokens = np.full(count, token, np.int32)
        return p.run(cache, tokens, [(start, count, 1, pages)], "scalar", 1, states=[state])[0]

    first = step(0, 5, state).copy()
    assert state.position == 5
    with pytest.raises(ValueError, match="positions before"):
        step(4, 1, state)
    other.copy_from(state)
    assert_same_bits(step(5, 1, state).copy(), step(5, 1, other))
    assert_same_bits(step(0, 5, state), first)  # what was before does not count
    with pytest.raises(ValueError, match="its own"):
        p.run(
            cache, np.zeros(2, np.int32), [(0, 1, 0, pages), (0, 1, 0, pages)], "scalar", 1,
            states=[state, state],
        )  # fmt: skip
    with pytest.raises(ValueError, match="one for each"):
        p.run(cache, np.zeros(1, np.int32), [(0, 1, 0, pages)], "scalar", 1)
    with pytest.raises(ValueError, match="same size"):
        state.copy_from(_native.State(p.state_bytes + 4096))


@pytest.mark.parametrize(
    ("name", "part"),
    [
        *((name, "norm") for name in NAMES),
        *((name, "short conv, bias") for name in NAMES if name != "one tap"),  # without a state
    ],
)
def test_drafts_go_on_in_a_state_of_their_own(name: str, part: str) -> None:
    """The sequence's own is left as it is before them; both as steps without drafts leave them."""
    p, cache = program(name, part), _native.KvCache([(1, 16)], 8, "f32")
    pages, tokens = np.arange(2, dtype=np.int32), np.arange(N, dtype=np.int32)

    def step(
        state: _native.State, start: int, end: int, *ahead: tuple[int, int, _native.State]
    ) -> np.ndarray:
        span = (start, end - start, end - start, pages)
        return p.run(
            cache, tokens[start:end], [span], "scalar", 1, states=[state], ahead=ahead
        )[0].copy()  # fmt: skip

    def read(state: _native.State) -> tuple[bytes, int]:
        out = np.empty(state.nbytes, np.uint8)
        state.read(out)
        return out.tobytes(), state.position

    for start, sure, end in ((0, 1, 2), (0, 30, 37), (20, 21, 36), (20, 25, 26)):
        mine, drafts, before, behind = (_native.State(p.state_bytes) for _ in range(4))
        for state in (mine, before, behind):
            step(state, 0, start or 1)
        wanted = step(behind, start, end)
        step(before, start, sure)
        assert_same_bits(step(mine, start, end, (0, end - sure, drafts)), wanted)
        assert read(mine) == read(before)
        assert read(drafts) == read(behind)
    for ahead, rule in (
        ((0, 6, drafts), "before the drafts"), ((0, 0, drafts), "before the drafts"),
        ((1, 1, drafts), "of sequences"), ((-1, 1, drafts), "of sequences"),
        ((0, 1, mine), "its own"), ((0, 1, _native.State(1)), "too small"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=rule):
            step(mine, 0, 6, ahead)
    with pytest.raises(ValueError, match="of sequences"):
        step(mine, 0, 6, (0, 1, drafts), (0, 1, before))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("column", ["q", "v", "z"])
def test_what_is_not_finite_is_told(column: str, isa: str) -> None:
    """Infinity in a part of a row is an error that names the layer; the state is of no use then."""
    case, of = CASES["grouped"], layer("grouped")
    h, at, rows = case.heads, case.columns, of.rows / 4
    rows[:, {"q": 0, "v": h.width - 1, "z": at["z"]}[column]] = 3e38
    g = GraphBuilder(Heads(1, 1, 16))
    row = g.add(
        ConvOp(
            name="conv1d",
            x=g.add(EmbedOp(weight=ops.pack(rows, format="f32"), factor=4)),
            taps=np.ascontiguousarray(of.taps.T),
        )
    )
    x = g.add(
        RecurrenceOp(
            name="layer 7", x=row, heads=h, a=at["a"], b=at["b"], rate=of.rate, bias=of.bias
        )
    )
    x = g.add(
        GatedOp(
            name="layer 7",
            x=x,
            gates=row,
            column=at["z"],
            stride=h.v_dim,
            heads=gate_heads(x.width, h.v_heads),
            activation="silu",
            norm=of.norm,
            eps=EPS,
        )
    )
    x = g.norm(x, np.ones(x.width, np.float32), EPS, "layer 7")
    eye = ops.pack(np.eye(len(rows), x.width, dtype=np.float32), format="f32")
    g.linear(g.select(x), eye, "lm_head")
    p = g.graph.compile()
    state, pages = _native.State(p.state_bytes), np.arange(2, dtype=np.int32)
    cache = _native.KvCache([(1, 16)], 2, "f32")
    with pytest.raises(FloatingPointError, match="layer 7"):
        p.run(cache, np.arange(3, dtype=np.int32), [(0, 3, 1, pages)], isa, 1, states=[state])
    assert state.position == -1
