"""Rotary embedding: interleaved pairs are half-split ones with the rows in another order."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import assert_same_bits

from sterna import _native, ops
from sterna.graph import Attention, GraphBuilder, Heads, Rotary
from sterna.graph.ops import EmbedOp

WIDTH, HEADS, KV_HEADS, DIM, VOCAB = 64, 4, 2, 16, 64


def logits(
    interleaved: bool, q: np.ndarray, k: np.ndarray, growth: tuple[float, ...] = ()
) -> np.ndarray:
    """float32 [n, vocab] of one attention layer over a fixed prompt; other weights are fixed."""
    rng = np.random.default_rng(1)
    table = ops.pack(rng.standard_normal((VOCAB, WIDTH)).astype(np.float32), format="f32")
    v = rng.standard_normal((KV_HEADS * DIM, WIDTH)).astype(np.float32)
    frequencies = tuple(_native.inverse_frequencies(100.0, DIM))
    how = Attention(Rotary(frequencies, interleaved), growth=growth)
    g = GraphBuilder(Heads(HEADS, KV_HEADS, DIM))
    x = g.add(EmbedOp(weight=table))
    qkv = ops.pack(np.concatenate([q, k, v]), format="f32")
    h = g.attention(g.linear(x, qkv, "qkv"), 0, how)
    g.linear(g.select(h), table, "lm_head")
    program = g.graph.compile()
    tokens = np.arange(20, dtype=np.int32)
    cache = _native.KvCache([(KV_HEADS, DIM)], 1, "f32")
    pages = np.zeros(1, np.int32)
    return program.run(cache, tokens, [(0, 20, 20, pages)], "scalar", 1)[0]


def test_interleaved_is_a_permutation() -> None:
    """Row 2i of an interleaved head is row i of a half-split one, row 2i + 1 is row i + dim / 2."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((HEADS * DIM, WIDTH)).astype(np.float32) * 0.2
    k = rng.standard_normal((KV_HEADS * DIM, WIDTH)).astype(np.float32) * 0.2

    def interleave(w: np.ndarray) -> np.ndarray:
        halves = w.reshape(-1, 2, DIM // 2, WIDTH)
        return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(w.shape))

    split = logits(False, q, k)
    # Scores add the same products in another order: each of DIM sums may round once more.
    tolerance = DIM * np.finfo(np.float32).eps * np.abs(split).max() * 8
    np.testing.assert_allclose(
        logits(True, interleave(q), interleave(k)), split, rtol=0, atol=tolerance
    )
    assert np.abs(logits(True, q, k) - split).max() > 100 * tolerance


def test_growing_queries() -> None:
    """Rows of the first period stay; in the third they are (1 + a log 3) times as long."""
    rng = np.random.default_rng(0)
    q = rng.standard_normal((HEADS * DIM, WIDTH)).astype(np.float32) * 0.2
    k = rng.standard_normal((KV_HEADS * DIM, WIDTH)).astype(np.float32) * 0.2
    plain, grown = logits(False, q, k), logits(False, q, k, (0.5, 8.0))
    assert_same_bits(grown[:8], plain[:8])
    assert_same_bits(logits(False, q, k, (0.5, 20.0)), plain)
    longer = logits(False, q * np.float32(1 + 0.5 * np.log(3)), k)
    np.testing.assert_allclose(grown[16:], longer[16:], rtol=1e-4, atol=1e-3)
    assert np.abs(plain[16:] - longer[16:]).max() > 0.1


@pytest.mark.parametrize("growth", [(0.5,), (0.0, 8.0), (0.5, 0.0), (np.inf, 8.0)])
def test_wrong_growth_is_refused(growth: tuple[float, ...]) -> None:
    q, k = np.ones((HEADS * DIM, WIDTH), np.float32), np.ones((KV_HEADS * DIM, WIDTH), np.float32)
    with pytest.raises(ValueError, match=r"attention\.growth: must be a"):
        logits(False, q, k, growth)
