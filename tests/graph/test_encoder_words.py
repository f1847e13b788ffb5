"""Attention in both directions, windows and slopes on both sides, rows of parts of a pair, and
means of texts, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.graph import Attention, GraphBuilder, Heads
from sterna.graph.ops import EmbedOp, PartsOp

VOCAB, HEADS, KV_HEADS, DIM = 80, 4, 2, 16
Q, KV = HEADS * DIM, KV_HEADS * DIM
TABLE = np.random.default_rng(3).standard_normal((VOCAB, Q + 2 * KV)).astype(np.float32)
PARTS = np.random.default_rng(4).standard_normal((2, Q + 2 * KV)).astype(np.float32)
LENGTHS = (3, 300, 70, 1)  # a text over a chunk of 256 positions among short ones
SLOPES = (0.5, 2.0**-4.5, 0.0, 2.0)
SECOND = {0: 1, 2: 40}  # of two of them, where the second part begins


def program(how: Attention) -> _native.Program:
    """Rows [q | k | v] of tokens and parts -> attention -> logits that are its result."""
    g = GraphBuilder(Heads(HEADS, KV_HEADS, DIM))
    x = g.add(
        PartsOp(name="parts", x=g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"))), table=PARTS)
    )
    x = g.attention(x, 0, how)
    identity = ops.pack(np.eye(VOCAB, Q, dtype=np.float32), format="f32")
    g.linear(g.select(x), identity, "lm_head")
    return g.graph.compile()


def texts() -> list[np.ndarray]:
    """Token ids of each text."""
    rng = np.random.default_rng(5)
    return [rng.integers(0, VOCAB, n).astype(np.int32) for n in LENGTHS]


def run(
    isa: str, threads: int, kv: str = "f32", alone: int | None = None, window: int | None = None,
    slopes: tuple[float, ...] = (),
) -> np.ndarray:  # fmt: skip
    """The output of attention for all texts, or for one alone, float32 [tokens, q]."""
    cache = _native.KvCache([(KV_HEADS, DIM)], 16, kv)
    chosen = range(len(LENGTHS)) if alone is None else [alone]
    spans, pages, ids = [], 0, []
    for text in (texts()[i] for i in chosen):
        count = -(-len(text) // 64)
        spans.append((0, len(text), len(text), np.arange(pages, pages + count, dtype=np.int32)))
        pages += count
        ids.append(text)
    seconds = [(n, SECOND[i]) for n, i in enumerate(chosen) if i in SECOND]
    how = Attention(None, window, bidirectional=True, slopes=slopes)
    rows = program(how).run(
        cache, np.concatenate(ids), spans, isa, threads, second_parts=seconds
    )[0]  # fmt: skip
    return rows[:, :Q]


def expected(window: int = 1 << 30, slopes: tuple[float, ...] = (0.0,)) -> np.ndarray:
    """The definition."""
    out = []
    for i, text in enumerate(texts()):
        part = np.arange(len(text)) >= SECOND.get(i, len(text))
        row = TABLE[text].astype(np.float64) + PARTS[part.astype(int)]
        q, k, v = (a.reshape(len(text), -1, DIM) for a in np.split(row, [Q, Q + KV], axis=1))
        k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / DIM**0.5
        at = np.arange(len(text))
        distances = abs(at[:, None] - at)
        scores -= np.array(slopes)[:, None, None] * distances
        scores[:, distances >= window] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        out.append(np.einsum("hij,jhd->ihd", weights, v).reshape(len(text), -1))
    return np.concatenate(out)


@pytest.mark.parametrize("window", [1 << 30, 1, 33, 290])
def test_positions_see_the_whole_text_or_a_window_on_both_sides(window: int) -> None:
    """And the second part of a pair has a row of its own."""
    first = run(ISAS[0], 1, window=window)
    np.testing.assert_allclose(first, expected(window), rtol=1e-4, atol=2e-6)
    for isa in ISAS:
        for threads in (1, 3, 8):
            assert_same_bits(run(isa, threads, window=window), first)


@pytest.mark.parametrize("window", [1 << 30, 33])
@pytest.mark.parametrize("kv", ["i16", "i8", "f16", "f32"])
def test_slopes_fall_on_both_sides(kv: str, window: int) -> None:
    """By the distance, before a position as behind it, on every unit and in any company."""
    first = run(ISAS[0], 1, kv, window=window, slopes=SLOPES)
    close = {"i8": 0.1, "i16": 2e-3, "f16": 2e-3, "f32": 1e-5}[kv]
    assert abs(first - expected(window, SLOPES)).max() < close
    for isa in ISAS:
        for threads in (1, 3, 8):
            assert_same_bits(run(isa, threads, kv, window=window, slopes=SLOPES), first)
    for i, rows in enumerate(np.split(first, np.cumsum(LENGTHS)[:-1])):
        alone = run(ISAS[-1], 16, kv, alone=i, window=window, slopes=SLOPES)
        assert_same_bits(alone, rows)


@pytest.mark.parametrize("kv", ["i16", "i8", "f16", "f32"])
@pytest.mark.parametrize("window", [None, 33])
def test_a_text_alone_has_the_same_bits(kv: str, window: int | None) -> None:
    """As among others, on few threads and on many; and integer keys give nearly the values."""
    together = np.split(run(ISAS[0], 8, kv, window=window), np.cumsum(LENGTHS)[:-1])
    close = {"i8": 0.1, "i16": 2e-3, "f16": 2e-3, "f32": 1e-5}[kv]
    assert abs(np.concatenate(together) - expected(window or 1 << 30)).max() < close
    for i, rows in enumerate(together):
        for threads in (1, 16):
            assert_same_bits(run(ISAS[-1], threads, kv, alone=i, window=window), rows)


def test_means_of_texts() -> None:
    """In the place of each row that is wanted, added in the order of tokens."""

    def rows(mean: bool, wanted: tuple[int, int], threads: int) -> np.ndarray:
        g = GraphBuilder(Heads(HEADS, KV_HEADS, DIM))
        x = g.attention(g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"))), 0, Attention(None))
        g.linear(g.select(x, mean), ops.pack(np.eye(Q, dtype=np.float32), format="f32"), "lm_head")
        pages = np.arange(16, dtype=np.int32)
        spans = [(0, LENGTHS[i], wanted[i], pages[5 * i :]) for i in (0, 1)]
        cache, ids = _native.KvCache([(KV_HEADS, DIM)], 16, "f32"), np.concatenate(texts()[:2])
        return g.graph.compile().run(cache, ids, spans, ISAS[-1], threads)[0]

    each = np.split(rows(False, LENGTHS[:2], 1), [LENGTHS[0]])
    means = [np.cumsum(row.astype(np.float64), axis=0)[-1] / len(row) for row in each]
    expected = np.stack([means[0], means[1], means[1]]).astype(np.float32)
    for threads in (1, 3):
        assert_same_bits(rows(True, (1, 2), threads), expected)


def test_a_layer_that_looks_back_is_told_apart() -> None:
    """Heads that both kinds of layers have would have two plans."""
    g = GraphBuilder(Heads(HEADS, KV_HEADS, DIM))
    qkv = ops.pack(np.zeros((Q + 2 * KV, Q), np.float32), format="f32")
    x = g.attention(
        g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"))), 0, Attention(None, bidirectional=True)
    )
    x = g.attention(g.linear(x, qkv, "second"), 1, Attention(None))
    g.linear(g.select(x), ops.pack(np.eye(VOCAB, Q, dtype=np.float32), format="f32"), "lm_head")
    with pytest.raises(ValueError, match="bidirectional: must be the same in all layers"):
        g.graph.compile()
