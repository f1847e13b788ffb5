"""Rows of features in the places of tokens, positions that see each other behind and ahead, and
rotations by coordinates: against tokens, and against numpy in float64, on every unit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.graph import Attention, GraphBuilder, Heads, Rotary
from sterna.graph.ops import EmbedOp, FeaturesOp

VOCAB, HEADS, KV_HEADS, DIM = 80, 4, 2, 16
Q, KV = HEADS * DIM, KV_HEADS * DIM
TABLE = np.random.default_rng(3).standard_normal((VOCAB, Q + 2 * KV)).astype(np.float32)
TOKENS = np.random.default_rng(5).integers(0, VOCAB, 300).astype(np.int32)
#: Positions of two images, one over a chunk of 256 positions.
IMAGES = ((10, 40), (250, 290))


def program(how: Attention, deep: bool = False, image_token: int = -1) -> _native.Program:
    """Rows [q | k | v] of tokens (and features of a layer) -> attention -> logits that are it."""
    g = GraphBuilder(Heads(HEADS, KV_HEADS, DIM))
    x = g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"), image_token=image_token))
    x = g.add(FeaturesOp(name="features", x=x, column=TABLE.shape[1])) if deep else x
    x = g.attention(x, 0, how)
    identity = ops.pack(np.eye(VOCAB, Q, dtype=np.float32), format="f32")
    g.linear(g.select(x), identity, "lm_head")
    return g.graph.compile()


def run(
    how: Attention, images: Any, tokens: np.ndarray = TOKENS, isa: str = "scalar",
    deep: bool = False, kv: str = "f32", image_token: int = -1,
) -> np.ndarray:  # fmt: skip
    """The output of attention, float32 [tokens, q]."""
    cache = _native.KvCache([(KV_HEADS, DIM)], 5, kv)
    span = (0, len(tokens), len(tokens), np.arange(5, dtype=np.int32))
    return program(how, deep, image_token).run(cache, tokens, [span], isa, 2, images=images)[0][
        :, :Q
    ]


def test_features_are_rows() -> None:
    """Those of a token's own row change no bit; others are added."""
    placed = TOKENS.copy()
    placed[10:40] = -1 - np.arange(30)
    rows = TABLE[TOKENS[10:40]]
    expected = run(Attention(None), None)
    assert_same_bits(run(Attention(None), (rows, [], None), placed), expected)
    halves = np.concatenate([rows / 2, rows / 2], axis=1)
    assert_same_bits(run(Attention(None), (halves, [], None), placed, deep=True), expected)


def test_a_token_stands_where_images_do() -> None:
    """In a table that has nothing for features; other columns of theirs are added as always."""
    placed, same = TOKENS.copy(), TOKENS.copy()
    placed[10:40], same[10:40] = -1 - np.arange(30), 7
    rows = np.random.default_rng(0).standard_normal((30, 2 * TABLE.shape[1])).astype(np.float32)
    rows[:, TABLE.shape[1] :] = 0
    got = run(Attention(None), (rows, [], None), placed, deep=True, image_token=7)
    assert_same_bits(got, run(Attention(None), None, same))


def test_images_that_do_not_see_themselves() -> None:
    """In layers that are causal, a position sees those up to its own."""
    together = [(0, begin, end) for begin, end in IMAGES]
    got = run(Attention(None, causal=True), (None, together, None))
    assert_same_bits(got, run(Attention(None), None))
    assert not np.array_equal(got, run(Attention(None), (None, together, None)))
    with pytest.raises(ValueError, match="must not be bidirectional"):
        program(Attention(None, causal=True, bidirectional=True))


@pytest.mark.parametrize("window", [None, 25])
@pytest.mark.parametrize("isa", ISAS)
def test_images_see_themselves(isa: str, window: int | None) -> None:
    """The end of an image is seen by all of it; a window begins where it always does."""
    together = [(0, begin, end) for begin, end in IMAGES]
    got = run(Attention(None, window=window), (None, together, None), isa=isa)
    n = len(TOKENS)
    at = np.arange(n)
    ends = at + 1
    for begin, end in IMAGES:
        ends[begin:end] = end
    seen = at < ends[:, None]
    if window is not None:
        seen &= at > at[:, None] - window
    q, k, v = (
        a.reshape(n, -1, DIM) for a in np.split(TABLE[TOKENS].astype(float), [Q, Q + KV], axis=1)
    )
    k, v = (np.repeat(a, HEADS // KV_HEADS, axis=1) for a in (k, v))
    scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)
    weights = np.exp(np.where(seen, scores, -np.inf))
    weights /= weights.sum(axis=2, keepdims=True)
    expected = np.einsum("hij,jhd->ihd", weights, v).reshape(n, Q)
    assert np.abs(got - expected).max() < 1e-4


def test_coordinates_turn() -> None:
    """Equal ones on all axes turn as positions do; a rotation without axes does not see them."""
    frequencies = tuple((100.0 ** (-np.arange(8) / 8)).astype(np.float32).tolist())
    plain, placed = Rotary(frequencies), Rotary(frequencies, axes=(0, 1, 2, 0, 1, 2, 0, 1))
    same = np.repeat(np.arange(300, dtype=np.int32)[:, None], 3, axis=1)
    other = same * np.array([1, 2, 3], np.int32)
    expected = run(Attention(plain), None)
    assert_same_bits(run(Attention(placed), (None, [], same)), expected)
    assert_same_bits(run(Attention(plain), (None, [], other)), expected)
    assert np.abs(run(Attention(placed), (None, [], other)) - expected).max() > 1e-2
    twice = run(Attention(placed), (None, [], same * 2))
    doubled = run(Attention(Rotary(tuple(2 * f for f in frequencies))), None)
    assert np.abs(twice - doubled).max() < 1e-4


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ((TABLE[:2, :-1].copy(), [], None), "as many columns"),
        ((TABLE[:1], [], None), "outside the vocabulary"),
        ((TABLE[:2], [(1, 0, 2)], None), "sequences of the step"),
        ((TABLE[:2], [(0, 2, 2)], None), "new positions"),
        ((TABLE[:2], [(0, 290, 301)], None), "new positions"),
        ((TABLE[:2], [], np.zeros((300, 2), np.int32)), "three coordinates"),
    ],
)
def test_what_does_not_fit(images: Any, words: str) -> None:
    tokens = TOKENS.copy()
    tokens[:2] = -1, -2
    with pytest.raises(ValueError, match=words):
        run(Attention(None), images, tokens)
