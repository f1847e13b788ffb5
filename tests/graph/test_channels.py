"""Recurrences of single channels: Mamba's selective scan, the RG-LRU, a convolution without SiLU.

The oracle is numpy in float64. Bits are those of the scalar unit for every unit, thread count, way
to cut a prompt into steps, and company in a step.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits
from recurrent_steps import run_in_steps

from sterna import _native, ops
from sterna.graph import GraphBuilder, Heads, Piece, Value
from sterna.graph.ops import ConvOp, EmbedOp, RgLruOp, SelectiveScanOp

N = 40  # tokens
CUTS = [(N,), range(1, N + 1), (1, 3, 20, 37, N), (16, 32, 33, N)]
#: Channels, and the values of a channel's state: parts of a block of 16, and of a thread's share.
SIZES = {"plain": (64, 16), "odd": (37, 7), "many": (600, 3), "one": (5, 1), "published": (96, 64)}
OPS = ("selective_scan", "rg_lru", "conv")
#: Columns of a row [x | step | k | q] or [x | i | r].
Array = np.ndarray


@lru_cache
def rows(op: str, size: str) -> Array:
    channels, states = SIZES[size]
    rng = np.random.default_rng(channels)
    width = {"selective_scan": 2 * channels + 2 * states, "rg_lru": 3 * channels}
    x = rng.standard_normal((N, width.get(op, channels))).astype(np.float32)
    x[:, channels : 2 * channels] *= 3  # decays from 0 to nearly 1
    x[::9, channels : channels + 1] = 90.0
    x[4::9, channels : channels + 1] = -90.0
    return x


@lru_cache
def arrays(size: str) -> dict[str, Array]:
    channels, states = SIZES[size]
    rng = np.random.default_rng(states)
    return {
        "rate": -rng.uniform(0.01, 8, (channels, states)).astype(np.float32),
        "skip": rng.standard_normal(channels).astype(np.float32),
        "decay": rng.uniform(-9, 2, channels).astype(np.float32),
        "taps": rng.standard_normal((channels, 4)).astype(np.float32),
    }


def write(g: GraphBuilder, op: str, size: str, row: Value) -> Value:
    (channels, states), of = SIZES[size], arrays(size)

    def part(begin: int, width: int) -> Value:
        return g.place(width, [(row, Piece(width, begin=begin))], "part")

    x = part(0, channels)
    if op == "conv":
        return g.add(
            ConvOp(
                name="layer 7",
                x=x,
                taps=np.ascontiguousarray(of["taps"].T),
                bias=of["skip"],
                linear=True,
            )
        )
    gates = part(channels, row.width - channels)
    if op == "rg_lru":
        return g.add(RgLruOp(name="layer 7", x=x, gates=gates, decay=of["decay"]))
    k, q = part(2 * channels, states), (gates, channels + states)
    return g.add(
        SelectiveScanOp(
            name="layer 7",
            x=x,
            step=gates,
            rate=np.ascontiguousarray(of["rate"].T),
            skip=of["skip"],
            k=k,
            k_column=0,
            q=q[0],
            q_column=q[1],
        )
    )


@lru_cache
def program(op: str, size: str) -> _native.Program:
    given, g = rows(op, size), GraphBuilder(Heads(1, 1, 16))
    table = np.zeros((max(N, given.shape[1]), given.shape[1]), np.float32)
    table[:N] = given
    x = write(g, op, size, g.add(EmbedOp(weight=ops.pack(table, format="f32"))))
    eye = np.eye(len(table), x.width, dtype=np.float32)
    g.linear(g.select(x), ops.pack(eye, format="f32"), "lm_head")
    return g.graph.compile()


def run(
    op: str, size: str, isa: str, threads: int = 1, cuts: Iterable[int] = (N,), company: int = 0
) -> Array:
    """float32 [N, channels]: in steps that end so, with so many other sequences."""
    return run_in_steps(program(op, size), SIZES[size][0], N, isa, threads, cuts, company)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def expected(op: str, size: str) -> Array:
    """The same in float64, token by token."""
    (channels, states), of = SIZES[size], arrays(size)
    x, rest = np.split(rows(op, size).astype(np.float64), [channels], axis=1)
    out = np.zeros((N, channels))
    if op == "conv":
        before = np.concatenate([np.zeros((3, channels)), x])
        return sum(before[i : i + N] * of["taps"][:, i] for i in range(4)) + of["skip"]
    if op == "rg_lru":
        i, r = np.split(rest, 2, axis=1)
        log_a = -8 * np.logaddexp(0, of["decay"].astype(np.float64)) * sigmoid(r)
        h = np.zeros(channels)
        for t in range(N):
            share = np.sqrt(-np.expm1(2 * log_a[t])) if t else 1.0
            h = np.exp(log_a[t]) * h + share * sigmoid(i[t]) * x[t]
            out[t] = h
        return out
    step, k, q = np.split(rest, [channels, channels + states], axis=1)
    size_of, state = np.logaddexp(0, step), np.zeros((channels, states))
    for t in range(N):
        state *= np.exp(of["rate"] * size_of[t][:, None])
        state += (size_of[t] * x[t])[:, None] * k[t]
        out[t] = state @ q[t] + of["skip"] * x[t]
    return out


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", SIZES)
def test_against_numpy(op: str, size: str) -> None:
    """Float rounding only: of sums of as many products as a state has values, over the tokens."""
    got, wanted = run(op, size, "scalar"), expected(op, size)
    bound = 2.0**-24 * 8 * np.sqrt(SIZES[size][1] * N)
    assert np.abs(got - wanted).max() <= bound * np.abs(wanted).max()


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("size", SIZES)
def test_bits(op: str, size: str) -> None:
    """One result for every unit, thread count, way to cut into steps, and company."""
    wanted = run(op, size, "scalar")
    for isa in ISAS:
        for threads, cuts in ((1, CUTS[0]), (3, CUTS[1]), (1, CUTS[2]), (3, CUTS[3])):
            assert_same_bits(run(op, size, isa, threads, cuts), wanted)
        assert_same_bits(run(op, size, isa, 2, CUTS[2], company=3), wanted)


@pytest.mark.parametrize("op", OPS)
def test_drafts_go_on_in_a_state_of_their_own(op: str) -> None:
    """The sequence's own is left as it is before them; both as steps without drafts leave them."""
    p, cache = program(op, "many"), _native.KvCache([(1, 16)], 8, "f32")
    pages, tokens = np.arange(2, dtype=np.int32), np.arange(N, dtype=np.int32)

    def step(state: _native.State, start: int, end: int, *ahead: tuple[int, int, object]) -> Array:
        span = (start, end - start, end - start, pages)
        got = p.run(cache, tokens[start:end], [span], "scalar", 2, states=[state], ahead=ahead)
        return got[0].copy()

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
@pytest.mark.parametrize("value", [3e38, -3e38])
@pytest.mark.parametrize(("op", "column"), [("selective_scan", 40), ("rg_lru", 40), ("rg_lru", 77)])
def test_what_is_not_finite_is_told(op: str, column: int, value: float, isa: str) -> None:
    """An infinite step or gate is an error that names a layer, though a sigmoid would hide it."""
    given = np.zeros((120, rows(op, "odd").shape[1]), np.float32)
    given[:, column] = value
    g = GraphBuilder(Heads(1, 1, 16))
    x = write(g, op, "odd", g.add(EmbedOp(weight=ops.pack(given, format="f32"), factor=4)))
    eye = ops.pack(np.eye(len(given), x.width, dtype=np.float32), format="f32")
    g.linear(g.select(x), eye, "lm_head")
    p = g.graph.compile()
    state, pages = _native.State(p.state_bytes), np.arange(2, dtype=np.int32)
    cache, tokens = _native.KvCache([(1, 16)], 2, "f32"), np.arange(3, dtype=np.int32)
    with pytest.raises(FloatingPointError, match="layer 7"):
        p.run(cache, tokens, [(0, 3, 1, pages)], isa, 1, states=[state])
    assert state.position == -1


@pytest.mark.parametrize(
    ("op", "change", "rule"),
    [
        ("selective_scan", {"k": (0, 80)}, "k: is too narrow"),
        ("selective_scan", {"q": (0, -1)}, "k: is too narrow"),
        ("selective_scan", {"rate": np.ones((36, 7), np.float32)}, "for each channel"),
        ("selective_scan", {"skip": np.ones(36, np.float32)}, "a value for each channel"),
        ("selective_scan", {"step": 20}, "steps are"),
        ("rg_lru", {"gates": 64}, "two for each channel"),
        ("rg_lru", {"decay": np.ones(36, np.float32)}, "a value for each channel"),
    ],
)  # fmt: skip
def test_wrong_fields_are_refused(op: str, change: dict[str, Any], rule: str) -> None:
    of, g = arrays("odd"), GraphBuilder(Heads(1, 1, 16))
    row = g.add(EmbedOp(weight=ops.pack(rows(op, "odd"), format="f32")))

    def part(width: int) -> Value:
        return g.place(width, [(row, Piece(width))], "part")

    x = part(37)
    if op == "rg_lru":
        gates = part(change.get("gates", 74))
        out = g.add(
            RgLruOp(name="layer 7", x=x, gates=gates, decay=change.get("decay", of["decay"]))
        )
    else:
        k, q = ((part(80), change.get(n, (0, 0))[1]) for n in "kq")
        step = part(change.get("step", 37))
        rate, skip = (change.get(n, of[n]) for n in ("rate", "skip"))
        rate = np.ascontiguousarray(rate.T)
        columns = {"k": k[0], "k_column": k[1], "q": q[0], "q_column": q[1]}
        out = g.add(
            SelectiveScanOp(name="layer 7", x=x, step=step, rate=rate, skip=skip, **columns)
        )
    g.linear(g.select(out), ops.pack(np.eye(64, out.width, dtype=np.float32), format="f32"), "head")
    with pytest.raises(ValueError, match=rf"layer 7 \({op}\).*{rule}"):
        g.graph.compile()
