"""Attention whose keys are also its values, of which the cache keeps one; and rows of heads.

Ordinary attention over rows [q | k | k] is the oracle of the first, bit for bit: what pages hold
is the same, and `test_attention_words` compares it with numpy.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.formats import Experts
from sterna.graph import Attention, GraphBuilder, Heads, LatentHeads, Piece, Rotary
from sterna.graph.ops import EmbedOp

N, QUERIES = 330, 5  # two chunks of positions, and pages of the second
ROTARY = Rotary((1.0, 0.25, 0.01), interleaved=True)  # six values of a head
Size = tuple[int, int, int]  # head_dim, value_dim, KV heads
HOWS = {
    "plain": Attention(None),
    "window": Attention(None, window=100, cap=2.0, scale=0.3),
    "sinks": Attention(None, sinks=(-1.0, 0.0, 1.0, 2.0, 3.0)),
    "rotated": Attention(ROTARY),
}
CASES: list[tuple[Size, str]] = [
    ((48, 32, 1), "plain"), ((30, 20, 1), "window"), ((30, 30, 5), "sinks"),
    ((144, 128, 1), "rotated"), ((48, 32, 1), "rotated"),
]  # fmt: skip
#: Threads, and where steps end.
WAYS: list[tuple[int, Iterable[int]]] = [
    (1, (N,)), (3, (60, *range(61, 70), 250, *range(251, 262), N)), (4, (270, N)),
]  # fmt: skip


@lru_cache
def program(size: Size, how: str, latent: bool) -> _native.Program:
    """The logits are the last value_dim features of each head's result, then zeros."""
    head_dim, value_dim, kv_heads = size
    rng = np.random.default_rng(head_dim)
    q = rng.standard_normal((N, QUERIES * head_dim))
    k = rng.standard_normal((N, kv_heads * head_dim))
    table = np.concatenate([q, k] if latent else [q, k, k], axis=1).astype(np.float32)
    heads = Heads(QUERIES, kv_heads, head_dim)
    g = GraphBuilder(heads)
    own = LatentHeads(QUERIES, kv_heads, head_dim, value_dim) if latent else heads
    x = g.attention(g.add(EmbedOp(weight=ops.pack(table, format="f32"))), 0, HOWS[how], heads=own)
    if not latent:
        last = Piece(value_dim, QUERIES, head_dim - value_dim, head_dim, 0, value_dim)
        x = g.place(QUERIES * value_dim, [(x, last)], "last")
    eye = np.eye(max(N, x.width), x.width, dtype=np.float32)
    g.linear(g.select(x), ops.pack(eye, format="f32"), "lm_head")
    return g.graph.compile()


def run(
    size: Size, how: str, kv_dtype: str, isa: str, threads: int,
    cuts: Iterable[int], latent: bool = True,
) -> np.ndarray:  # fmt: skip
    """float32 [N, QUERIES * value_dim], in steps that end so."""
    p, count = program(size, how, latent), -(-N // 64)
    cache = _native.KvCache(
        [(size[2], size[0])], count + 2, kv_dtype, keys_alone=[True] if latent else []
    )
    pages, start, found = np.arange(count + 2, dtype=np.int32)[::-1][:count].copy(), 0, []
    for end in cuts:
        tokens = np.arange(start, end, dtype=np.int32)
        found.append(p.run(cache, tokens, [(start, end - start, end - start, pages)], isa, threads)[
            0
        ].copy())  # fmt: skip
        start = end
    return np.concatenate(found)[:, : QUERIES * size[1]]


@pytest.mark.parametrize("kv_dtype", ["f32", "f16", "i16", "i8"])
@pytest.mark.parametrize(("size", "how"), CASES, ids=str)
def test_bits_are_those_of_keys_stored_twice(size: Size, how: str, kv_dtype: str) -> None:
    """On every unit, for all threads and ways to cut. A rotated key has another scale than the same
    values by themselves, so that there integers of one way are those of all others alone."""
    isas = [*ISAS[::-1]]
    exact = how != "rotated" or (kv_dtype in ("f32", "f16") and size[1] <= size[0] - 6)
    wanted = run(size, how, kv_dtype, isas[0], 1, (N,), latent=not exact)
    if not exact:
        near = run(size, how, "f32", isas[0], 1, (N,))
        assert np.abs(wanted - near).max() < (0.1 if kv_dtype == "i8" else 0.01)
    for isa in isas:
        for threads, cuts in WAYS[2:] if isa == "scalar" else WAYS:
            assert_same_bits(run(size, how, kv_dtype, isa, threads, cuts), wanted)


def test_a_cache_of_keys_alone() -> None:
    """Half the bytes; another kind of cache is refused."""
    p, tokens, pages = (
        program(CASES[0][0], "plain", True),
        np.zeros(1, np.int32),
        np.zeros(1, np.int32),
    )
    both, alone = (_native.KvCache([(1, 48)], 2, "i16", keys_alone=[a]) for a in (False, True))
    assert alone.page_nbytes() * 2 == both.page_nbytes()
    with pytest.raises(ValueError, match="cache"):
        p.run(both, tokens, [(0, 1, 1, pages)], "scalar", 1)
    stored = np.arange(alone.page_nbytes(), dtype=np.uint8)
    alone.write_page(0, stored)
    alone.copy_page(0, 1)
    out = np.empty_like(stored)
    alone.read_page(1, out)
    np.testing.assert_array_equal(out, stored)


@pytest.mark.parametrize("format_", ["f32", "i8"])
@pytest.mark.parametrize("isa", ISAS)
def test_rows_of_heads(isa: str, format_: str) -> None:
    """Each head's piece times its own matrix, as a linear layer of that piece alone."""
    heads, K, M, n = 3, 20, 24, 37
    rng = np.random.default_rng(1)
    table = rng.standard_normal((96, 5 + heads * 30)).astype(np.float32)
    weights = [
        ops.quantize(rng.standard_normal((M, K)).astype(np.float32), format=format_)
        if format_ == "i8"
        else ops.pack(rng.standard_normal((M, K)).astype(np.float32), format=format_)
        for _ in range(heads)
    ]
    g = GraphBuilder(Heads(1, 1, 16))
    x = g.add(EmbedOp(weight=ops.pack(table, format="f32")))
    rows = g.head_rows(x, Piece(K, heads, 5, 30), "rows")
    y = g.linear(rows, Experts.of(heads, iter(weights), "of heads"), "of heads")
    y = g.place(2 + heads * 32, [(y, Piece(M - 1, heads, 1, 0, 2, 32)), (x, Piece(2))], "place")
    eye = np.eye(len(table), y.width, dtype=np.float32)
    g.linear(g.select(y), ops.pack(eye, format="f32"), "lm_head")
    p, cache = g.graph.compile(), _native.KvCache([(1, 16)], 1, "f32")
    for threads in (1, 4):
        tokens = np.arange(n, dtype=np.int32)
        got = p.run(cache, tokens, [(0, n, n, np.zeros(1, np.int32))], isa, threads)[0]
        assert_same_bits(got[:, :2].copy(), table[:n, :2])
        for h, weight in enumerate(weights):
            own = np.ascontiguousarray(table[:n, 5 + 30 * h :][:, :K])
            wanted = ops.linear(own, weight, isa=isa)
            assert_same_bits(got[:, 2 + 32 * h :][:, : M - 1].copy(), wanted[:, 1:].copy())
