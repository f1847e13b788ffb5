"""Attention to the positions that an indexer chooses, against numpy in float64, bit for bit in all
ways to compute it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.graph import Attention, GraphBuilder, Heads, LatentHeads, Piece, Rotary
from sterna.graph.ops import EmbedOp

N, KEPT = 330, 70  # two chunks of positions, two pages of chosen keys
HEADS, D = 3, 10  # of the indexer, whose heads are padded
QUERIES, WIDTH, VALUES = 5, 48, 32  # of attention
STILL, TURNED = Rotary((0.0,)), Rotary((1.0, 0.3))
BEGINS = np.cumsum([0, HEADS * D, D, HEADS, QUERIES * WIDTH, WIDTH])  # columns of the table
#: Threads, and where steps end.
WAYS: list[tuple[int, Iterable[int]]] = [
    (1, (N,)), (3, (60, *range(66, 75), 250, *range(251, 262), N)), (4, (270, N)),
]  # fmt: skip


@lru_cache
def table() -> np.ndarray:
    """Rows [q | k | weights] of small whole numbers, so that scores are exact and often equal, and
    [q | k] of attention."""
    rng = np.random.default_rng(3)
    whole = rng.integers(-2, 3, (N, BEGINS[3]))
    return np.concatenate([whole, rng.standard_normal((N, BEGINS[5] - BEGINS[3]))], axis=1).astype(
        np.float32
    )


def compiled(rows: np.ndarray, rotary: Rotary, kept: int | None = KEPT) -> _native.Program:
    """The logits are [positions that were chosen | results of attention]; kept None: no indexer."""
    g = GraphBuilder(Heads(QUERIES, 1, WIDTH))
    x = g.add(EmbedOp(weight=ops.pack(rows, format="f32")))
    chosen = None
    if kept is not None:
        own = g.place(BEGINS[2], [(x, Piece(int(BEGINS[2])))], "own")
        heads = LatentHeads(HEADS, 1, D, D)
        chosen = g.indexer(own, x, int(BEGINS[2]), rotary, heads, kept, 0)
    width = (QUERIES + 1) * WIDTH
    qk = g.place(width, [(x, Piece(width, begin=int(BEGINS[3])))], "qk")
    y = g.attention(
        qk, 0, Attention(None), heads=LatentHeads(QUERIES, 1, WIDTH, VALUES), chosen=chosen
    )
    first = [(chosen, Piece(kept))] if chosen is not None and kept is not None else []
    both = [*first, (y, Piece(y.width, column=kept or 0))]
    y = g.place((kept or 0) + y.width, both, "both")
    eye = np.eye(max(N, y.width), y.width, dtype=np.float32)
    g.linear(g.select(y), ops.pack(eye, format="f32"), "lm_head")
    return g.graph.compile()


@lru_cache
def program(rotary: Rotary = STILL, kept: int | None = KEPT) -> _native.Program:
    """That of `table`."""
    return compiled(table(), rotary, kept)


def new_cache(kv_dtype: str, pages: int, indexed: bool = True) -> _native.KvCache:
    """Keys of the indexer, if there is one, and then of attention."""
    layers = [(1, D), (1, WIDTH)] if indexed else [(1, WIDTH)]
    return _native.KvCache(layers, pages, kv_dtype, keys_alone=[True] * len(layers))


def run(
    p: _native.Program, kv_dtype: str, isa: str, threads: int, cuts: Iterable[int] = (N,),
    indexed: bool = True,
) -> np.ndarray:  # fmt: skip
    """All rows of the logits, in steps that end so."""
    count, start, found = -(-N // 64), 0, []
    cache = new_cache(kv_dtype, count + 2, indexed)
    pages = np.arange(count + 2, dtype=np.int32)[::-1][:count].copy()
    for end in cuts:
        tokens = np.arange(start, end, dtype=np.int32)
        spans = [(start, end - start, end - start, pages)]
        found.append(p.run(cache, tokens, spans, isa, threads)[0].copy())
        start = end
    return np.concatenate(found)


def parts(rows: np.ndarray) -> list[np.ndarray]:
    """The columns of a table as float64: q [n, heads, d], k, weights, and attention's q and k."""
    q, k, w, aq, ak = np.split(rows.astype(np.float64), BEGINS[1:5], axis=1)
    return [q.reshape(-1, HEADS, D), k, w, aq.reshape(-1, QUERIES, WIDTH), ak]


def scores() -> np.ndarray:
    """float64 [n, positions], of heads that are not rotated."""
    q, k, w, *_ = parts(table())
    return np.einsum("th,ths->ts", w, np.maximum(np.einsum("thd,sd->ths", q, k), 0))


def attended(chosen: np.ndarray) -> np.ndarray:
    """float64 [n - KEPT, queries * values]: of rows that choose, each attending to its row of
    `chosen`."""
    *_, q, k = parts(table())
    out = []
    for t, own in enumerate(chosen, KEPT):
        logits = q[t] @ k[own].T * WIDTH**-0.5
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        out.append(weights / weights.sum(axis=1, keepdims=True) @ k[own, WIDTH - VALUES :])
    return np.stack(out).reshape(len(out), -1)


def test_the_largest_scores_are_chosen() -> None:
    """Of equal scores the lowest positions, which the order in which numpy sorts keeps."""
    of_all = scores()
    wanted = [np.sort(np.argsort(-of_all[t, : t + 1], kind="stable")[:KEPT]) for t in range(N)]
    lowest = [of_all[t, own].min() for t, own in enumerate(wanted)]
    ties = [t for t in range(KEPT, N) if (of_all[t, : t + 1] >= lowest[t]).sum() > KEPT]
    assert len(ties) > 50
    for isa in ISAS:
        found = run(program(), "f32", isa, 2)[KEPT:, :KEPT]
        np.testing.assert_array_equal(found, wanted[KEPT:])


@pytest.mark.parametrize(
    ("kv_dtype", "most"), [("f32", 1e-5), ("f16", 2e-3), ("i16", 2e-3), ("i8", 0.1)]
)
def test_attention_is_to_those(kv_dtype: str, most: float) -> None:
    """What float64 gives for the positions that the program chose; and these ascend."""
    found = run(program(TURNED), kv_dtype, ISAS[0], 2)[KEPT:]
    chosen = found[:, :KEPT].astype(np.int64)
    assert (np.diff(chosen, axis=1) > 0).all()
    assert (chosen[:, 0] >= 0).all()
    assert (chosen[:, -1] <= np.arange(KEPT, N)).all()
    assert (chosen[-1] != np.arange(KEPT)).any()
    assert np.abs(found[:, KEPT : KEPT + QUERIES * VALUES] - attended(chosen)).max() < most


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "i16", "i8"])
def test_bits_are_the_same(kv_dtype: str) -> None:
    """On every unit, for all threads and ways to cut a prompt, up to single tokens."""
    wanted = defined(run(program(TURNED), kv_dtype, ISAS[-1], 1))
    for isa in ISAS[::-1]:
        for threads, cuts in WAYS[2:] if isa == "scalar" else WAYS:
            assert_same_bits(defined(run(program(TURNED), kv_dtype, isa, threads, cuts)), wanted)


def defined(rows: np.ndarray) -> np.ndarray:
    """The rows, with zeros for the choice of those that attend to all positions."""
    rows[:KEPT, :KEPT] = 0
    return rows


@pytest.mark.parametrize("kv_dtype", ["f32", "i16"])
@pytest.mark.parametrize("threads", [1, 3])
def test_beside_others(kv_dtype: str, threads: int) -> None:
    """Sequences with common pages, some past KEPT positions, in one step: each as it is alone."""
    p, isa, at = program(TURNED), ISAS[-1], (320, 66, 257)
    pages, alone = np.arange(8, dtype=np.int32), run(p, kv_dtype, isa, 1)
    cache = new_cache(kv_dtype, 20)
    p.run(cache, np.arange(320, dtype=np.int32), [(0, 320, 0, pages)], isa, threads)
    tables = []
    for i, start in enumerate(at):  # the page that a sequence writes is its own
        own = pages.copy()
        own[start // 64] = 10 + i
        cache.copy_page(start // 64, 10 + i)
        tables.append(own)
    tokens = np.concatenate([np.arange(start, start + 3, dtype=np.int32) for start in at])
    spans = [(start, 3, 3, own) for start, own in zip(at, tables, strict=True)]
    found = p.run(cache, tokens, spans, isa, threads)[0]
    for i, start in enumerate(at):
        one = slice(0 if start >= KEPT else KEPT, None)
        got, wanted = found[3 * i : 3 * i + 3, one], alone[start : start + 3, one]
        assert_same_bits(got.copy(), wanted.copy())


@pytest.mark.parametrize("kv_dtype", ["f32", "i16", "i8"])
def test_where_all_are_chosen(kv_dtype: str) -> None:
    """The bits of attention to all positions, if there are no more than an indexer keeps."""
    wide, isa = program(TURNED, N), ISAS[-1]
    wanted = run(program(TURNED, None), kv_dtype, isa, 2, indexed=False)
    for threads, cuts in WAYS:
        found = run(wide, kv_dtype, isa, threads, cuts)[:, N : N + QUERIES * VALUES]
        assert_same_bits(found.copy(), wanted[:, : QUERIES * VALUES].copy())


@pytest.mark.parametrize("scale", [1e30, 1e19])
def test_scores_that_are_not_finite_are_named(scale: float) -> None:
    """As infinities, and as sums of these."""
    rows = table().copy()
    rows[:, : BEGINS[2]] *= np.float32(scale)
    for isa in ISAS:
        with pytest.raises(FloatingPointError, match=r"self_attn\.indexer"):
            run(compiled(rows, STILL), "f32", isa, 2)


def test_wrong_fields_are_named() -> None:
    """A column that is not there, and layers of one kind of heads of which some do not choose."""
    heads = LatentHeads(HEADS, 1, D, D)

    def of(column: int, count: int, width: int = 8) -> None:
        g = GraphBuilder(Heads(1, 1, 16))
        x = g.add(EmbedOp(weight=ops.pack(table(), format="f32")))
        own = g.place(BEGINS[2], [(x, Piece(int(BEGINS[2])))], "own")
        for layer in range(count):
            chosen = g.indexer(own, x, column, STILL, heads, width + layer, layer)
        qk = g.place(32, [(x, Piece(32))], "qk")
        latent = LatentHeads(1, 1, 16, 16)
        y = g.attention(qk, 0, Attention(None), heads=latent, chosen=chosen)
        y = g.attention(g.place(32, [(y, Piece(16)), (y, Piece(16, column=16))], "qk"), 1,
                        Attention(None), heads=latent)  # fmt: skip
        g.linear(g.select(y), ops.pack(np.eye(N, 16, dtype=np.float32), format="f32"), "lm_head")
        g.graph.compile()

    with pytest.raises(ValueError, match="weights: must have a column for each head"):
        of(len(table()[0]) - 1, 1)
    with pytest.raises(ValueError, match="output: must be as wide in all layers"):
        of(0, 2)
    with pytest.raises(ValueError, match="chosen: must be there in all layers of these heads"):
        of(0, 1)
