"""The options of a layer's attention: windows, caps, a scale, sinks, slopes (ALiBi), rotations of
a part of a head.

The oracle is numpy in float64. Bits are those of the scalar unit for every unit, thread count and
way to cut a prompt into steps.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers import ISAS, assert_same_bits
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

from sterna import _native, ops
from sterna.graph import Attention, GraphBuilder, Heads, Rotary
from sterna.graph.ops import EmbedOp

KV_HEADS, PER_KV, N = 2, 3, 420  # two chunks of positions, and pages of the second
QUERIES = KV_HEADS * PER_KV
PART = Rotary((1.0, 0.25, 0.01), interleaved=True)  # six values of a head
HALVES = Rotary(tuple(100 ** (-i / 8) for i in range(8)))
SINKS = (-3.0, 0.0, 0.5, 2.0, 5.0, 9.0)  # scores have a spread of 1, over some hundred positions
SLOPES = (0.5, 0.125, 2.0**-6.5, 2.0**-8, 0.0, 3.0)  # at 3 a chunk far away weighs nothing
HOWS = {
    "plain": Attention(HALVES),
    "no rotation, scale": Attention(None, scale=0.1),
    "part": Attention(PART, cap=2.0),
    "window 1": Attention(HALVES, window=1),
    "window 5": Attention(PART, window=5),
    "window 64": Attention(HALVES, window=64, cap=3.0),
    "window 100": Attention(None, window=100, scale=0.4),
    "window 256": Attention(HALVES, window=256),
    "window 300": Attention(PART, window=300, scale=0.5, cap=1.0),
    "window 1000": Attention(HALVES, window=1000),
    "sinks": Attention(HALVES, sinks=SINKS),
    "sinks, window 1": Attention(None, window=1, sinks=SINKS),
    "sinks, window 100": Attention(HALVES, window=100, scale=0.4, cap=2.0, sinks=SINKS),
    "slopes": Attention(None, slopes=SLOPES),
    "slopes, window 100": Attention(
        HALVES, window=100, scale=0.4, cap=2.0, sinks=SINKS, slopes=SLOPES
    ),
}
# Of keys and values, root mean squares of an error over those of the numbers: integers are rounded
# in steps of a 4095th or a 127th of the largest, which is at most four times their spread.
ROUNDING = {
    "f32": 0.0, "f16": 2.0**-11 / 3**0.5, "i16": 4 / 12**0.5 / 4095, "i8": 4 / 12**0.5 / 127
}  # fmt: skip
# Where steps end: singly past a page and past a chunk, in halves of a page, all at once.
MIXED = (60, *range(61, 70), 250, *range(251, 262), 350, N)
#: Threads, and where steps end.
WAYS: list[tuple[int, Iterable[int]]] = [
    (3, (N,)), (1, range(32, N + 1, 32)), (2, MIXED), (4, (270, N)),
]  # fmt: skip


@lru_cache
def table(head_dim: int) -> np.ndarray:
    """float32 [N, heads]: row i is [q | k | v] of the token i, which stands at position i."""
    rng = np.random.default_rng(head_dim)
    rows = rng.standard_normal((N, (QUERIES + 2 * KV_HEADS) * head_dim))
    return rows.astype(np.float32)


@lru_cache
def program(head_dim: int, how: Attention) -> _native.Program:
    """One layer of attention over rows of the table; the logits are what it gives, then zeros."""
    g = GraphBuilder(Heads(QUERIES, KV_HEADS, head_dim))
    h = g.attention(g.add(EmbedOp(weight=ops.pack(table(head_dim), format="f32"))), 0, how)
    identity = ops.pack(np.eye(N, QUERIES * head_dim, dtype=np.float32), format="f32")
    g.linear(g.select(h), identity, "lm_head")
    return g.graph.compile()


def run(
    head_dim: int, how: Attention, kv_dtype: str, isa: str, threads: int = 1,
    cuts: Iterable[int] = (N,), pages: np.ndarray | None = None,
    cache: _native.KvCache | None = None, start: int = 0,
) -> np.ndarray:  # fmt: skip
    """float32 [N - start, QUERIES * head_dim] of positions from `start`, in steps that end so."""
    count = -(-N // 64)
    cache = cache or _native.KvCache([(KV_HEADS, head_dim)], count, kv_dtype)
    pages = np.arange(count, dtype=np.int32)[::-1].copy() if pages is None else pages
    found = []
    for end in sorted({*cuts, N}):
        tokens = np.arange(start, end, dtype=np.int32)
        spans = [(start, len(tokens), len(tokens), pages)]
        found.append(program(head_dim, how).run(cache, tokens, spans, isa, threads)[0].copy())
        start = end
    return np.concatenate(found)[:, : QUERIES * head_dim]


@lru_cache
def plainly(head_dim: int, how: Attention, kv_dtype: str) -> np.ndarray:
    """All positions in one step of the plainest unit, which takes some forty times as long as the
    others: so tests share it."""
    return run(head_dim, how, kv_dtype, ISAS[0])


def rotated(x: np.ndarray, rotary: Rotary | None) -> np.ndarray:
    """x [N, heads, head_dim] of positions 0, 1, ... in float64."""
    if rotary is None:
        return x
    x, pairs = x.copy(), len(rotary.inverse_frequencies)
    f = np.array(rotary.inverse_frequencies, np.float32)
    angle = (np.arange(N, dtype=np.float32)[:, None] * f).astype(np.float64)[:, None, :]
    first = slice(0, 2 * pairs, 2) if rotary.interleaved else slice(0, pairs)
    second = slice(1, 2 * pairs, 2) if rotary.interleaved else slice(pairs, 2 * pairs)
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first] = a * np.cos(angle) - b * np.sin(angle)
    x[..., second] = b * np.cos(angle) + a * np.sin(angle)
    return x


@lru_cache
def oracle(head_dim: int, how: Attention) -> tuple[np.ndarray, float, float]:
    """Attention in float64; how far float32 may be from it; and how much relative roundings
    of keys and values move it, root mean squares."""
    x = table(head_dim).astype(np.float64).reshape(N, -1, head_dim)
    q, k = rotated(x[:, :QUERIES], how.rotary), rotated(x[:, QUERIES:-KV_HEADS], how.rotary)
    q, k = q.swapaxes(0, 1), k.repeat(PER_KV, 1).transpose(1, 2, 0)
    v = x[:, -KV_HEADS:].repeat(PER_KV, 1).swapaxes(0, 1)
    scale = head_dim**-0.5 if how.scale is None else how.scale
    scores = scale * (q @ k)
    # Of a score: the sum's roundings and those of rotations, and of its logarithm to base 2.
    error = (head_dim + 16) * 2.0**-24 * scale * (abs(q) @ abs(k)).max()
    moved = scale * head_dim**0.5  # of numbers whose spread is 1
    if how.cap:
        scores = how.cap * np.tanh(scores / how.cap)
        error += 2.0**-20 * how.cap
    i, j = np.indices((N, N))
    if how.slopes:
        scores -= np.array(how.slopes)[:, None, None] * abs(i - j)
        error += 2.0**-22 * 100  # farther keys weigh nothing
    scores[:, (j > i) | (i - j >= (how.window or N))] = -np.inf
    sinks = np.array(how.sinks or (-np.inf,) * QUERIES)[:, None, None]
    most = np.maximum(scores.max(-1, keepdims=True), sinks)
    weights = np.exp(scores - most)
    weights /= weights.sum(-1, keepdims=True) + np.exp(sinks - most)
    out = (weights @ v).swapaxes(0, 1).reshape(N, -1)
    # Weights whose logarithms are off by e move an average by 2 e; 2^x is off by 2^-22.
    values = (min(how.window or N, N) + 16) * 2.0**-24 + 2.0**-20
    return out, float((2 * error + values) * abs(v).max()), moved + 1


@pytest.mark.parametrize("name", HOWS)
def test_against_float64(name: str) -> None:
    """Every way to attend, over pages of every type; twenty is no multiple of 16."""
    for head_dim in (20, 64):
        expected, exact, moved = oracle(head_dim, HOWS[name])
        assert exact < 0.02 * expected.std()
        for kv_dtype, rounding in ROUNDING.items():
            cache = _native.KvCache([(KV_HEADS, head_dim)], -(-N // 64), kv_dtype)
            got = run(head_dim, HOWS[name], kv_dtype, ISAS[-1], cache=cache)
            for isa in ISAS[:-1]:  # test_same_bits has all rows of the slow unit
                start = N - 40 if isa == "scalar" else 0
                again = run(head_dim, HOWS[name], kv_dtype, isa, cache=cache, start=start)
                assert_same_bits(again, got[start:])
            error = abs(got - expected)
            if not rounding:
                assert error.max() <= exact, head_dim
                continue
            # Of any position; queries are rounded as finely as i16, and weights lose 0.4 %.
            size = (error**2).mean(-1).max() ** 0.5
            tolerance = 2 * moved * (rounding + ROUNDING["i16"]) + 0.004 + exact
            assert size <= tolerance, (head_dim, kv_dtype)


@pytest.mark.parametrize("kv_dtype", ROUNDING)
@pytest.mark.parametrize("name", HOWS)
def test_same_bits(name: str, kv_dtype: str) -> None:
    """Units, threads and steps; of the slow plain unit the way that has steps of all sizes, for one
    type of each arithmetic."""
    expected = plainly(20, HOWS[name], kv_dtype)
    for isa in ISAS:
        slow_ways = WAYS[2:3] if kv_dtype in ("f32", "i16") else []
        for threads, cuts in WAYS if isa != "scalar" else slow_ways:
            assert_same_bits(run(20, HOWS[name], kv_dtype, isa, threads, cuts), expected)


def test_sinks_are_those_of_transformers() -> None:
    """The eager attention of gpt-oss, the model that has them."""
    how, head_dim = Attention(None, sinks=SINKS), 20
    x = torch.from_numpy(table(head_dim)).reshape(1, N, -1, head_dim).transpose(1, 2)
    module = SimpleNamespace(
        num_key_value_groups=PER_KV, sinks=torch.tensor(SINKS), training=False
    )  # fmt: skip
    mask = torch.triu(torch.full((N, N), -torch.inf), 1)
    q, k, v = x[:, :QUERIES], x[:, QUERIES:-KV_HEADS], x[:, -KV_HEADS:]
    expected = eager_attention_forward(module, q, k, v, mask, head_dim**-0.5)[0]
    got = run(head_dim, how, "f32", ISAS[0])
    np.testing.assert_allclose(got, expected.reshape(N, -1), atol=3e-6)


@pytest.mark.parametrize("kv_dtype", ROUNDING)
def test_sinks_beyond_all_scores(kv_dtype: str) -> None:
    """One that is far below every score counts for nothing, and one far above for all of a row."""
    plain = plainly(20, HOWS["plain"], kv_dtype)
    for far in (100.0, 1e6, float(np.finfo(np.float32).max)):
        for isa in [isa for isa in ISAS if far == 100.0 or isa != "scalar"]:
            none = run(20, Attention(HALVES, sinks=(-far,) * QUERIES), kv_dtype, isa)
            assert_same_bits(none, plain)
            all_of_it = run(20, Attention(HALVES, sinks=(far,) * QUERIES), kv_dtype, isa)
            assert abs(all_of_it).max() < 1e-20


def test_the_ways_differ() -> None:
    """So that equal bits mean something."""
    found = [plainly(20, how, "i16")[-1] for how in HOWS.values()]
    same = {(i, j) for i, a in enumerate(found) for j in range(i) if np.array_equal(a, found[j])}
    names = list(HOWS)
    assert same == {(names.index("window 1000"), names.index("plain"))}


@pytest.mark.parametrize("kv_dtype", ["f32", "i16"])
@pytest.mark.parametrize("window", [1, 64, 100, 256, 300])
def test_pages_before_a_window(window: int, kv_dtype: str) -> None:
    """They are not read: the table may name any page in their place."""
    how, last = Attention(HALVES, window=window), 400
    count = -(-N // 64)
    cache = _native.KvCache([(KV_HEADS, 20)], count + 1, kv_dtype)
    pages = np.arange(count, dtype=np.int32)
    expected = run(20, how, kv_dtype, ISAS[0], pages=pages, cache=cache)
    gone = (last + 1 - window) // 64  # pages that end before what the first of the rest sees
    hidden = np.where(np.arange(count) < gone, np.int32(count), pages).astype(np.int32)
    assert gone > 0
    for isa in ISAS:
        for threads, cuts in ((1, range(last + 1, N)), (3, range(last + 1, N)), (2, (N,))):
            got = run(20, how, kv_dtype, isa, threads, cuts, hidden, cache, last)
            assert_same_bits(got, expected[last:])


@pytest.mark.parametrize("kv_dtype", ["f32", "i16"])
@pytest.mark.parametrize("name", HOWS)
def test_sequences_with_pages_in_common(name: str, kv_dtype: str) -> None:
    """Each as alone, where others go on from one chunk of its pages, from two, or from none."""
    # Of each sequence: how many of the first one's pages it has, where it stands, and how many
    # tokens it adds: the last more than one block of rows.
    shares = ((0, 600, 1), (8, 640, 3), (4, 300, 2), (0, 290, 1), (8, 512, 1), (4, 256, 40))
    rng = np.random.default_rng(5)
    cache = _native.KvCache([(KV_HEADS, 20)], 60, kv_dtype)
    free = iter(rng.permutation(60).astype(np.int32))
    one = program(20, HOWS[name])
    spans, added = [], []
    for shared, start, count in shares:
        own = [next(free) for _ in range(-(-(start + count) // 64) - shared)]
        pages = np.array([*(spans[0][3][:shared] if shared else ()), *own], np.int32)
        before = rng.integers(0, N, start, np.int32)[64 * shared :]
        if len(before):
            one.run(cache, before, [(64 * shared, len(before), 1, pages)], ISAS[-1], 1)
        spans.append((start, count, count, pages))
        added.append(rng.integers(0, N, count, np.int32))

    def step(of: Iterable[int], isa: str, threads: int) -> list[np.ndarray]:
        tokens = np.concatenate([added[i] for i in of])
        rows = one.run(cache, tokens, [spans[i] for i in of], isa, threads)[0].copy()
        return np.split(rows, np.cumsum([len(added[i]) for i in of])[:-1])

    alone = [step([i], ISAS[0], 1)[0] for i in range(len(shares))]
    for isa in ISAS:
        for threads in (1, 3):
            for of in (range(6), (5, 2, 4, 0, 1, 3), (4, 1), (3, 2, 0)):
                for i, rows in zip(of, step(of, isa, threads), strict=True):
                    assert_same_bits(rows, alone[i])


def test_refusals() -> None:
    """The program refuses options that no kernel supports."""
    for how, word in (
        (Attention(HALVES, window=0), "window"), (Attention(HALVES, scale=0.0), "scale"),
        (Attention(HALVES, scale=float("nan")), "scale"), (Attention(HALVES, cap=-1.0), "cap"),
        (Attention(HALVES, cap=float("inf")), "cap"), (Attention(Rotary(())), "rotary"),
        (Attention(HALVES, sinks=(1.0,) * 5), "sinks"),
        (Attention(HALVES, sinks=(float("nan"),) * QUERIES), "sinks"),
        (Attention(HALVES, slopes=(1.0,) * 5), "slopes"),
        (Attention(HALVES, slopes=(-0.5,) * QUERIES), "slopes"),
        (Attention(HALVES, slopes=(float("inf"),) * QUERIES), "slopes"),
        (Attention(HALVES, slopes=(float("nan"),) * QUERIES), "slopes"),
        (Attention(Rotary((1.0,) * 11)), "rotary"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=word):
            program(20, how)


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((20, 40), {}), ((QUERIES * 20, 20), {}), ((19, 19), {}),
        ((QUERIES * 20, KV_HEADS * 20), {"norms_last": True}),
        ((QUERIES * 20, KV_HEADS * 20), {"gated": True}),
    ],
)  # fmt: skip
def test_refused_norms(sizes: tuple[int, int], options: dict[str, bool]) -> None:
    """Of other lengths than a head, or q and k; of all heads where these are rotated or apart."""
    g = GraphBuilder(Heads(QUERIES, KV_HEADS, 20))
    row = np.ones((N, (QUERIES * (2 if "gated" in options else 1) + 2 * KV_HEADS) * 20), np.float32)
    q, k = (np.ones(size, np.float32) for size in sizes)
    x = g.add(EmbedOp(weight=ops.pack(row, format="f32")))
    h = g.attention(x, 0, HOWS["plain"], (q, k), 1e-5, **options)
    g.linear(g.select(h), ops.pack(np.eye(N, QUERIES * 20, dtype=np.float32), format="f32"), "head")
    with pytest.raises(ValueError, match=r"layers.0.self_attn \(rope\): q_norm: "):
        g.graph.compile()
