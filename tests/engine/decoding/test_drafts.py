"""Drafts change no token: with any source, parameters and cuts the answer is that without."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import failure
from hypothesis import given, settings
from hypothesis import strategies as st
from test_requests import PARAMS, params_of, prompt

from sterna import LLM, Completion
from sterna.engine import Engine, Request
from sterna.engine.decoding.draft_sources import (
    LONG,
    SHORT,
    DraftModel,
    PredictedOutput,
    PromptLookup,
)
from sterna.engine.decoding.speculation import MOST_DRAFTS, DraftSource, Speculation
from sterna.engine.kv_cache.sequence import PAGE
from sterna.engine.scheduling.step_costs import StepCosts
from sterna.errors import RequestError
from sterna.sampling_params import SamplingParams

MORE: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "frequency_penalty": 0.7, "presence_penalty": 0.3},
    {"temperature": 1.2, "logit_bias": {7: 4.0, 9: -3.0}, "top_k": 9, "repetition_penalty": 1.3},
    {"temperature": 1.0, "allowed_token_ids": tuple(range(5, 90)), "logprobs": 2},
    {"temperature": 0.7, "bad_words": ((7,), (8, 9)), "min_tokens": 6, "stop_token_ids": (3, 4)},
)


class Guesser:
    """Drafts that are right as often as asked for: of an answer that is known."""

    cost, prior = 0.0, 0.9

    def __init__(self, begin: int, answer: list[int], share: float, seed: int) -> None:
        self.begin, self.answer, self.share = begin, answer, share
        self.rng = np.random.default_rng(seed)

    def propose(self, history: np.ndarray, k: int) -> list[int]:
        at = len(history) - self.begin
        known = (self.answer[at:] + [1] * k)[: int(self.rng.integers(0, k + 1))]
        return [t if self.rng.random() < self.share else int(self.rng.integers(250)) for t in known]


@pytest.fixture(
    scope="module",
    params=[
        "bitnet-multiply",
        "llama-bf16",
        "qwen3_5",
        "mamba2",
        "recurrent-gemma",
        "lfm2",
        "granite-hybrid",
        "minicpm3",
        "mistral-window",
    ],
)
def llm(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint(request.param), threads=2, speculate="off")


def facts(done: Completion) -> tuple[Any, ...]:
    return done.text, done.tokens, done.finish_reason, done.logprobs


def run(engine: Engine, request: Request, cut: int = 512) -> Completion:
    """The answer, and that its sequence has the positions of its tokens alone."""
    while not request.ended:
        (output,) = engine.run([request.step_input(cut, MOST_DRAFTS, free)])
        request.take(output.drawn)
        assert request.sequence.length <= len(request.tokens)
    list(request.pieces())
    engine.kv_cache.release(request.sequence)
    return request.completion


def free() -> list[float]:
    """A step that costs the same however many tokens it has: drafts are always worth it."""
    return [1.0 + 1e-9 * n for n in range(MOST_DRAFTS + 2)]


@settings(max_examples=60)
@given(st.data())
def test_any_drafts_give_the_same(llm: LLM, data: st.DataObject) -> None:
    i = data.draw(st.integers(0, len(PARAMS) + len(MORE) - 1))
    n = data.draw(st.integers(1, 40))
    if i < len(PARAMS):
        params = replace(params_of(i), max_tokens=n)
    else:
        params = SamplingParams(**MORE[i - len(PARAMS)], seed=i, max_tokens=max(6, n), choice=1)
    start = prompt(i % len(PARAMS))

    def request(*sources: DraftSource) -> Request:
        speculation = Speculation(sources, llm.engine.kv_cache)
        return Request(
            start, params, llm.tokenizer, context=llm.context, speculation=speculation, ends=ends
        )

    ends = frozenset(data.draw(st.sampled_from([(), (93,), range(40)])))
    plain = run(llm.engine, request())
    assert plain.stats.n_drafted == 0
    share = data.draw(st.sampled_from([0.0, 0.5, 0.9, 1.0]))
    guesser = Guesser(len(start), plain.tokens, share, data.draw(st.integers(0, 99)))
    for sources in (
        (guesser,),
        (PromptLookup(LONG), PromptLookup(SHORT)),
        (PredictedOutput(len(start), plain.tokens), guesser),
    ):
        done = run(llm.engine, request(*sources), data.draw(st.sampled_from([3, 512])))
        assert facts(done) == facts(plain)
        assert 0 <= done.stats.n_accepted <= done.stats.n_drafted
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def test_right_drafts_save_steps(llm: LLM) -> None:
    """A known answer comes sixteen tokens a step."""
    options = {"max_tokens": 96, "seed": 3, "temperature": 1.0, "ignore_eos": True}
    plain = llm.generate([5, 6], **options)
    params = SamplingParams(**options)
    sources = [PredictedOutput(2, plain.tokens)]
    request = Request(
        [5, 6], params, llm.tokenizer, context=llm.context,
        speculation=Speculation(sources, llm.engine.kv_cache),
    )  # fmt: skip
    steps = 0
    while not request.ended:
        (output,) = llm.engine.run([request.step_input(512, MOST_DRAFTS, free)])
        request.take(output.drawn)
        steps += 1
    list(request.pieces())
    assert request.completion.tokens == plain.tokens
    assert steps == 1 + -(-95 // 16)
    assert request.completion.stats.n_accepted == 96 - steps


def test_a_step_may_be_lost(llm: LLM) -> None:
    """After one that was computed and not taken, the drafts' positions are forgotten."""
    plain = llm.generate([5, 6], max_tokens=20, ignore_eos=True)
    request = Request(
        [5, 6], SamplingParams(max_tokens=20), llm.tokenizer, context=llm.context,
        speculation=Speculation(
            [PredictedOutput(2, [*plain.tokens[:9], 1, 2, 3])], llm.engine.kv_cache
        ),
    )  # fmt: skip
    for lost in (False, False, True, True, False, False):
        (output,) = llm.engine.run([request.step_input(512, 5, free)])
        if not lost:
            request.take(output.drawn)
    assert run(llm.engine, request).tokens == plain.tokens


# ---------------------------------------------------------------------------------------- sources


def test_lookup_finds_the_latest() -> None:
    lookup = PromptLookup(SHORT)
    text = [1, 2, 3, 4, 5, 1, 2, 3, 6, 7, 1, 2]
    assert lookup.propose(np.array(text, np.int32), 4) == []
    text.append(3)
    assert lookup.propose(np.array(text, np.int32), 4) == [6, 7, 1, 2]
    assert lookup.propose(np.array([*text, 6, 7, 1], np.int32), 7) == [2, 3, 6, 7, 1, 2, 3]
    assert PromptLookup(SHORT).propose(np.array([1], np.int32), 4) == []


@settings(max_examples=200)
@given(st.lists(st.integers(0, 2), max_size=40), st.integers(0, 40), st.integers(1, 6))
def test_lookup_against_a_search(tokens: list[int], more: int, k: int) -> None:
    """However the text grows, it is the last place before its end where the last three were."""
    lookup = PromptLookup(SHORT)
    for n in sorted({min(more, len(tokens)), len(tokens)}):
        text = tokens[:n]
        got = lookup.propose(np.array(text, np.int32), k)
    ends = [e for e in range(3, len(text)) if text[e - 3 : e] == text[-3:]]
    expected = list(text)
    while ends and len(expected) < len(text) + k:
        expected.append(expected[ends[-1] + len(expected) - len(text)])
    assert got == expected[len(text) :]


def test_a_prediction_is_followed_and_found_again() -> None:
    text = list(range(100, 130))
    prediction = PredictedOutput(2, text)

    def after(*answer: int) -> list[int]:
        return prediction.propose(np.array([1, 2, *answer], np.int32), 3)

    assert after() == [100, 101, 102]
    assert after(100, 101) == [102, 103, 104]
    assert after(100, 101, 7) == []
    assert after(100, 101, 7, 104, 105) == []
    assert after(100, 101, 7, 104, 105, 106) == [107, 108, 109]
    assert after(100, 101, 7, 104, 105, 106, 107) == [108, 109, 110]


def test_what_does_not_pay_is_left() -> None:
    """Wrong drafts end soon, and are tried again after ever longer pauses; right ones grow."""

    def drafts(right: bool, n: int) -> list[int]:
        class Same:
            cost, prior = 0.0, 0.35

            def propose(self, history: np.ndarray, k: int) -> list[int]:
                return [1] * k

        speculation, made = Speculation([Same()]), []
        for position in range(n):
            made.append(len(speculation.propose(np.zeros(position, np.int32), MOST_DRAFTS)))
            if made[-1]:
                speculation.note(made[-1], made[-1] if right else 0)
        return made

    assert sum(drafts(False, 1000)) < 100
    assert drafts(False, 1000)[200:].count(0) > 770
    assert max(drafts(True, 60)) >= 10
    # Where others decode too, a draft must gain more than it costs them.
    made = []
    for cost, others in ((1.0, 0), (1.0, 20), (0.1, 20)):
        speculation = Speculation([PredictedOutput(0, [1] * 99)])
        costs = functools.partial(lambda slope: [10.0 + slope * n for n in range(17)], cost)
        made.append(len(speculation.propose(np.zeros(0, np.int32), 5, costs, others)))
    assert made == [5, 0, 5]
    assert Speculation([]).propose(np.zeros(9, np.int32), 5) == []


# ------------------------------------------------------------------------------------------- LLM


@pytest.mark.parametrize("name", ["llama-bf16", "qwen3_5"])
def test_an_llm_drafts_by_itself(
    name: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same text, in fewer steps where it repeats."""
    monkeypatch.setattr(StepCosts, "knows", lambda self, tokens: False)  # the usual, by no clock
    folder = checkpoint(name)
    plain, drafting = LLM(folder, threads=2, speculate="off"), LLM(folder, threads=2)
    options = {"max_tokens": 2 * PAGE, "ignore_eos": True}
    a, b = plain.generate([1, 2], **options), drafting.generate([1, 2], **options)
    assert facts(a) == facts(b)
    assert a.stats.n_drafted == 0
    assert b.stats.n_accepted > 20 or name == "qwen3_5"  # whose text does not repeat
    c = drafting.generate([1, 2], prediction=a.tokens, **options)
    d = drafting.generate([1, 2], prediction=a.text, **options)
    assert facts(a) == facts(c) == facts(d)
    assert c.stats.n_accepted > 100


def test_a_draft_model(checkpoint: Callable[[str], Path]) -> None:
    """It draws with the same random numbers: the same model drafts no wrong token."""
    folder = checkpoint("llama-bf16")
    draft = LLM(folder, threads=2, speculate="off")
    options = {"max_tokens": 30, "seed": 5, "temperature": 2.0, "ignore_eos": True}
    plain = draft.generate([1, 2], **options)
    llm = LLM(folder, threads=2, draft=draft)
    source = DraftModel(draft.engine, SamplingParams(**options).native, 2, 0.1)
    known = np.array([1, 2, *plain.tokens], np.int32)
    assert source.propose(known[:2], 4) == plain.tokens[:4]
    assert source.propose(known[:9], 4) == plain.tokens[7:11]
    wrong = np.array([*known[:4], 9], np.int32)
    assert source.propose(wrong, 3) == DraftModel(
        draft.engine, SamplingParams(**options).native, 2, 0.1
    ).propose(wrong, 3)
    done = llm.generate([1, 2], **options)
    assert facts(done) == facts(plain)
    other = LLM(checkpoint("bitnet-multiply"), threads=2, speculate="off")
    failure(lambda: LLM(folder, draft="nano"), RequestError, "draft", "nano")
    hybrid = LLM(checkpoint("qwen3_5"), threads=2)
    failure(lambda: LLM(folder, draft=hybrid), RequestError, "draft", "recurrent")
    failure(lambda: LLM(folder, draft=LLM("nano", threads=2)), RequestError, "draft", "tokens")
    done = LLM(folder, threads=2, draft=other).generate([1, 2], **options)
    assert facts(done) == facts(plain)
    done = LLM(checkpoint("qwen3_5"), threads=2, draft=draft).generate([1, 2], **options)
    assert facts(done) == facts(hybrid.generate([1, 2], **options))
