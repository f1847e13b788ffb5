"""Changes of logits before a draw: masks, biases and penalties against numpy, and the exact head
under them against the float head; what a request may ask of them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_heads import F32, pack, screened
from helpers import assert_same_bits, failure
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna import LLM, ops
from sterna.engine import Draw
from sterna.engine.decoding.allowed_tokens import AllowedTokens, mask_words
from sterna.errors import RequestError
from sterna.sampling_params import SamplingParams


def bits(allowed: np.ndarray) -> np.ndarray:
    """A mask of flags [vocab]."""
    flags = np.zeros(32 * mask_words(len(allowed)), bool)
    flags[: len(allowed)] = allowed
    return np.packbits(flags, bitorder="little").view("<i4").astype(np.int32)


def scores(logits: np.ndarray, allowed: np.ndarray, params: SamplingParams, draw: Draw) -> Any:
    """By numpy, a token at a time, in the order that scores.h gives."""
    out = logits.copy()
    history, answer = draw.history.tolist(), draw.history[draw.answer_begin :].tolist()
    if (last := params.repeat_last_n) is not None:
        history = answer = history if last < 0 else history[max(0, len(history) - last) :]
    for i in range(len(out)):
        out[i] += F32(params.logit_bias.get(i, 0.0))
        if i in history:
            penalty = F32(params.repetition_penalty)
            out[i] = out[i] / penalty if out[i] > 0 else out[i] * penalty
        if i in answer:
            out[i] -= F32(params.frequency_penalty) * F32(answer.count(i))
            out[i] -= F32(params.presence_penalty)
    out[~allowed] = -np.inf
    return out


def some_draw(data: st.DataObject, rng: np.random.Generator, vocab: int, **more: Any) -> Any:
    """(parameters, which tokens are allowed, draw), of biases, penalties and a mask or none."""
    ids = st.integers(0, vocab - 1)
    penalty = st.sampled_from([0.0, 0.0, 0.5, -1.5])
    params = SamplingParams(
        repetition_penalty=data.draw(st.sampled_from([1.0, 1.3, 0.7])),
        frequency_penalty=data.draw(penalty),
        presence_penalty=data.draw(penalty),
        repeat_last_n=data.draw(st.sampled_from([None, -1, 0, 1, 4, 64])),
        logit_bias=data.draw(st.dictionaries(ids, st.sampled_from([-100.0, -0.5, 3.0]))),
        **more,
    )
    n = data.draw(st.integers(0, 20))
    history = rng.integers(0, vocab, n).astype(np.int32)
    share = data.draw(st.sampled_from([None, 0.0, 0.02, 0.9]))
    allowed = np.ones(vocab, bool) if share is None else rng.random(vocab) < share
    allowed[rng.integers(vocab)] = True
    mask = None if share is None else bits(allowed)[None]
    return params, allowed, Draw(params.native, history, data.draw(st.integers(0, n)), mask)


@settings(max_examples=150)
@given(st.data())
def test_scores_are_those_of_numpy(data: st.DataObject) -> None:
    """The best of the scores, whatever the mask, the biases and the penalties."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    logits = (rng.standard_normal(data.draw(st.integers(1, 70))) * 2).astype(F32)
    params, allowed, draw = some_draw(data, rng, len(logits), logprobs=2)
    got = draw.sample(logits, 0)
    assert got.token == int(scores(logits, allowed, params, draw).argmax())
    exact = logits.astype(np.float64) - np.log(np.exp(logits.astype(np.float64)).sum())
    assert got.logprob == pytest.approx(exact[got.token], abs=1e-5)  # of raw logits, of all tokens
    assert got.top[0][0] == int(logits.argmax())


@settings(max_examples=150)
@given(st.data())
def test_an_exact_head_under_them(data: st.DataObject) -> None:
    """Only allowed rows are computed, with the float head's bits, and the same tokens drawn."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    M, K = data.draw(st.integers(1, 600)), data.draw(st.integers(1, 40))
    head = pack(rng.standard_normal((M, K)))
    x = rng.standard_normal((1, K)).astype(F32)
    floats = ops.linear(x, head)[0]
    more = data.draw(
        st.sampled_from([{}, {"temperature": 0.7, "top_k": 5}, {"temperature": 0.5, "min_p": 0.2}])
    )
    _, allowed, draw = some_draw(data, rng, M, **more)
    if not 1 <= draw.params.deciding[0] <= M:
        return
    (got,), _, _, (candidates,) = screened(head, x, [draw])
    there = got != -np.inf
    assert there.sum() == candidates
    assert not there[~allowed].any()
    assert_same_bits(got[there], floats[there])
    few = len(np.unique(np.flatnonzero(allowed) // 16)) <= -(-M // 16) // 8
    if few and draw.masks is not None:
        assert there.tolist() == allowed.tolist()
    for position in range(10):
        assert draw.sample(got, position).token == draw.sample(floats, position).token


def test_few_allowed_read_little_of_the_head(checkpoint: Callable[[str], Path]) -> None:
    """Their row blocks and no shadow; log-probabilities still take the whole head."""
    llm = LLM(checkpoint("bitnet-multiply"), head="exact", threads=1)
    head = llm.engine.model.graph.head
    assert head.weight is not None
    block = head.weight.codes.nbytes // (head.weight.M // 16)
    options: dict[str, Any] = {"max_tokens": 5, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    done = llm.generate([1, 2], allowed_token_ids=[33, 35], **options)
    assert set(done.tokens) <= {33, 35}
    assert (done.stats.head_bytes, done.stats.head_rows_rescored) == (5 * block, 10)
    reported = llm.generate([1, 2], allowed_token_ids=[33, 35], logprobs=3, **options)
    assert reported.tokens == done.tokens
    assert reported.stats.head_rows_rescored == 5 * head.weight.M
    assert [p.logprob for p in reported.logprobs] == pytest.approx(
        [llm.logprobs([1, 2, *done.tokens])[i + 1] for i in range(5)]
    )


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=2)


def test_tokens_that_end(llm: LLM) -> None:
    """stop_token_ids end an answer, and min_tokens keeps every end away until it is reached."""
    free = llm.generate([5, 6], max_tokens=12, ignore_eos=True)
    end = free.tokens[3]
    first = free.tokens.index(end)
    done = llm.generate([5, 6], max_tokens=12, ignore_eos=True, stop_token_ids=[end])
    assert (done.tokens, done.finish_reason) == (free.tokens[:first], "stop")
    longer = llm.generate(
        [5, 6], max_tokens=12, ignore_eos=True, stop_token_ids=[end], min_tokens=first + 2
    )
    assert longer.tokens[:first] == free.tokens[:first]
    assert len(longer.tokens) >= first + 2
    assert end not in longer.tokens


def test_bad_words(llm: LLM) -> None:
    """The last token of one does not follow the others, in the prompt or the answer."""
    free = llm.generate([5, 6], max_tokens=12, ignore_eos=True).tokens
    bad = free[2:5]
    text = [5, 6, *free]
    first = next(
        i for i in range(12) if text[i : i + 3] == bad
    )  # its last token is text[first + 2]
    done = llm.generate([5, 6], max_tokens=12, ignore_eos=True, bad_words=[bad])
    assert done.tokens[:first] == free[:first]
    assert done.tokens[first] != free[first]
    told = [5, 6, *done.tokens]
    assert bad not in [told[i : i + 3] for i in range(12)]
    other = llm.generate([5, 6], max_tokens=1, ignore_eos=True, bad_words=[[6, free[0]]])
    assert other.tokens[0] != free[0]
    word = llm.tokenizer.decode([free[0]])
    spelt = AllowedTokens(SamplingParams(bad_words=(word,)), llm.tokenizer, frozenset(), 250)
    ids = llm.tokenizer.encode(word, add_special=False)
    mask = spelt.mask(np.array(ids[:-1], np.int32), 0)
    assert not mask[ids[-1] // 32] >> ids[-1] % 32 & 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"presence_penalty": 2.1}, ["presence_penalty", "2.1"]),
        ({"frequency_penalty": float("nan")}, ["frequency_penalty", "nan"]),
        ({"logit_bias": [1]}, ["logit_bias", "mapping"]),
        ({"logit_bias": {"1": 1}}, ["logit_bias", "'1'"]),
        ({"logit_bias": {3: 101}}, ["logit_bias", "3", "101"]),
        ({"logit_bias": {1 << 30: 1}}, ["logit_bias", str(1 << 30)]),
        ({"allowed_token_ids": []}, ["allowed_token_ids", "none"]),
        ({"allowed_token_ids": [1, -1]}, ["allowed_token_ids", "-1"]),
        ({"allowed_token_ids": [7], "stop_token_ids": [7], "min_tokens": 1}, ["min_tokens", "7"]),
        ({"bad_words": "word"}, ["bad_words", "word"]),
        ({"bad_words": ["a", ""]}, ["bad_words", "empty"]),
        ({"bad_words": [[]]}, ["bad_words", "none"]),
        ({"min_tokens": 9, "max_tokens": 8}, ["min_tokens", "9"]),
        ({"stop_token_ids": [True]}, ["stop_token_ids", "True"]),
    ],
)
def test_what_is_refused(llm: LLM, options: dict[str, Any], words: list[str]) -> None:
    failure(lambda: llm.generate([1, 2], **options), RequestError, *words)
