"""Compares the DRY penalty with its definition in Python, and tests its breakers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_samplers import philox, softmax

from sterna import LLM
from sterna.engine import Draw
from sterna.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=2)


def dry_penalties(history: list[int], params: SamplingParams) -> dict[int, float]:
    """By the definition: for each earlier place, how far back it equals the end of the text."""
    n = params.dry_penalty_last_n
    text = history if n < 0 else history[len(history) - min(n, len(history)) :]
    since = len(text)  # tokens after the last breaker
    for begin in range(len(text) - 1, -1, -1):
        lengths = [
            len(w) for w in params.dry_sequence_breakers
            if text[begin : begin + len(w)] == list(w)
        ]  # fmt: skip
        if lengths:
            since = len(text) - begin - max(lengths)
            break
    found: dict[int, int] = {}
    for place in range(1, len(text)):
        length = 0
        while length < place and text[place - 1 - length] == text[len(text) - 1 - length]:
            length += 1
        length = min(length, since)
        if length >= params.dry_allowed_length:
            found[text[place]] = max(found.get(text[place], 0), length)
    return {
        token: params.dry_multiplier * params.dry_base ** (length - params.dry_allowed_length)
        for token, length in found.items()
    }


@settings(max_examples=200)
@given(st.data())
def test_dry_is_that_of_python(data: st.DataObject) -> None:
    """Few different tokens, so that repeats are long, nested and overlapping."""
    vocab = data.draw(st.integers(2, 6))
    ids = st.integers(0, vocab - 1)
    history = data.draw(st.lists(ids, max_size=60))
    params = SamplingParams(
        dry_multiplier=data.draw(st.sampled_from([0.8, 3.0])),
        dry_base=data.draw(st.sampled_from([1.0, 1.75])),
        dry_allowed_length=data.draw(st.integers(0, 4)),
        dry_penalty_last_n=data.draw(st.sampled_from([-1, 0, 1, 7, 100])),
        dry_sequence_breakers=data.draw(
            st.lists(st.lists(ids, min_size=1, max_size=3), max_size=2)
        ),
        temperature=1.0, seed=data.draw(st.integers(0, 99)),
    )  # fmt: skip
    logits = np.linspace(0, 1, vocab).astype(np.float32)
    scores = logits.astype(np.float64)
    for token, penalty in dry_penalties(history, params).items():
        scores[token] -= penalty
    draw = Draw(params.native, np.array(history, np.int32))
    greedy = Draw(params.replaced({"temperature": 0.0}).native, draw.history)
    assert greedy.sample(logits, 0).token == int(scores.argmax())
    for position in range(8):
        token = int(
            np.searchsorted(np.cumsum(softmax(scores)), philox(params.seed or 0, 0, position, 0))
        )
        assert draw.sample(logits, position).token == token


def test_dry_ends_a_loop(llm: LLM) -> None:
    """A greedy answer repeats itself; with DRY no repeat grows long, except of breakers."""
    options = {"max_tokens": 60, "ignore_eos": True, "temperature": 0}
    dry = {**options, "dry_multiplier": 50.0, "dry_sequence_breakers": ()}

    def longest_repeat(tokens: list[int]) -> int:
        return max(
            n for n in range(len(tokens)) for end in range(n, len(tokens) - n + 1)
            if n == 0 or tokens[end - n : end] in
            [tokens[e - n : e] for e in range(end + 1, len(tokens) + 1)]
        )  # fmt: skip

    loop = llm.generate([5, 5, 5, 5], **options).tokens
    assert longest_repeat(llm.generate([5, 5, 5, 5], **dry).tokens) < longest_repeat(loop)


def test_breakers_are_texts(llm: LLM) -> None:
    """A text stands for each token that contains it, and for tokens that spell it together."""
    from sterna.engine.decoding.sequence_breakers import with_breaker_ids

    tokenizer = llm.tokenizer
    vocab = range(tokenizer.vocab_size)
    asked = SamplingParams(dry_multiplier=1.0, dry_sequence_breakers=("e", "\nTo", (3, 4)))
    ids = with_breaker_ids(asked, tokenizer, vocab).dry_sequence_breakers
    assert (3, 4) in ids
    assert {one[0] for one in ids if len(one) == 1} >= {
        id for id in vocab if b"e" in tokenizer.token_bytes(id)
    }
    spelt = [b"".join(map(tokenizer.token_bytes, one)) for one in ids if one != (3, 4)]
    assert all(b"e" in text or b"\nTo" in text for text in spelt)
    assert tuple(tokenizer.encode("\nTo", add_special=False)) in ids
    off = asked.replaced({"dry_multiplier": 0.0})
    assert with_breaker_ids(off, tokenizer, vocab) is off


def test_breakers_of_the_tokens_that_occur(llm: LLM) -> None:
    """Only these are read, drafts that were dropped included; with the answer of all of them."""
    from sterna.engine.decoding.sequence_breakers import SequenceBreakers, with_breaker_ids

    tokenizer, vocab = llm.tokenizer, range(llm.tokenizer.vocab_size)
    asked = SamplingParams(
        dry_multiplier=3.0, dry_allowed_length=1, dry_sequence_breakers=("e", " a"),
        max_tokens=60, temperature=1.5, ignore_eos=True, seed=3,
    )  # fmt: skip
    whole = with_breaker_ids(asked, tokenizer, vocab)
    assert llm.generate([5, 6], asked).tokens == llm.generate([5, 6], whole).tokens
    every = set(whole.dry_sequence_breakers)
    breakers, rng = SequenceBreakers(asked, tokenizer), np.random.default_rng(2)
    history = np.zeros(0, np.int32)
    for known in range(0, 40, 4):
        drafts = rng.integers(0, len(vocab), 4).astype(np.int32)
        history = np.concatenate([history[:known], drafts])
        found = set(breakers.params(history, known).dry_sequence_breakers) - set(
            asked.dry_sequence_breakers
        )
        assert {one for one in every if one[0] in history} <= found <= every
    few: list[int] = []
    plain = tokenizer.token_bytes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenizer, "token_bytes", lambda id: few.append(id) or plain(id))
        llm.generate([5, 6], asked.replaced({"dry_sequence_breakers": ("q",), "max_tokens": 3}))
    assert len(set(few)) <= 6
