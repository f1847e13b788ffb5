"""Requests, alone and side by side: a step draws what the sampler makes of its logits, for each
sequence with its own parameters, and a request goes on from wherever its sequence is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sterna import LLM, Completion, Piece, _native
from sterna.engine import (
    PREFILL_CHUNK,
    DecidingLogits,
    Draw,
    Engine,
    Request,
    Sequence,
    StepInput,
)
from sterna.errors import NonFiniteError, RequestError
from sterna.sampling_params import SamplingParams

PARAMS = (
    {"temperature": 0.0},
    {"temperature": 0.0, "repetition_penalty": 1.7},
    {"temperature": 0.0, "logprobs": 3},
    {"temperature": 1.5, "top_k": 5},
    {"temperature": 2.0, "top_k": 40, "top_p": 0.6},
    {"temperature": 1.0, "top_p": 0.8},
    {"temperature": 1.0, "min_p": 0.4},
    {"temperature": 1.0, "min_p": 0.3, "repetition_penalty": 0.7},
    {"temperature": 3.0},
    {"temperature": 1.2, "top_p": 0.9, "logprobs": 7, "repetition_penalty": 1.2},
    {"temperature": 1.0, "stop": ("e", "a")},
    {"temperature": 1.3, "dry_multiplier": 0.8, "dry_allowed_length": 1, "xtc_probability": 0.5,
     "xtc_threshold": 0.02, "typical_p": 0.9, "top_n_sigma": 2.0, "dynatemp_range": 0.4},
    {"temperature": 1.2, "mirostat": 1, "mirostat_eta": 0.5, "dry_multiplier": 0.8},
    {"temperature": 1.2, "mirostat": 2, "mirostat_tau": 3.0, "logprobs": 2},
)  # fmt: skip
TOKENS = 12


@pytest.fixture(scope="module", params=["bitnet-multiply", "llama-bf16"])
def llm(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint(request.param), threads=2)


def prompt(i: int) -> list[int]:
    return [(i * 31 + j * 7) % 250 for j in range(1 + i * 13)]


def params_of(i: int, **change: Any) -> SamplingParams:
    settings = {"max_tokens": TOKENS - i % 4, "seed": 100 + i, **PARAMS[i], **change}
    return SamplingParams(**settings)


def requests(llm: LLM) -> list[Request]:
    return [
        Request(prompt(i), params_of(i), llm.tokenizer, context=llm.context)
        for i in range(len(PARAMS))
    ]


def by_logits(engine: Engine, tokens: list[int], params: SamplingParams) -> list[Any]:
    """(token, log-probability, likeliest) one by one, of all logits and the sampler alone."""
    known, tokens_drawn, mu = list(tokens), [], math.nan
    for _ in range(params.max_tokens):
        logits = engine.logits([known])[0][-1]
        draw = Draw(params.native, np.array(known, np.int32), mu=mu)
        got = draw.sample(logits, len(known))
        mu = got.mu
        tokens_drawn.append((got.token, got.logprob, got.top))
        known.append(got.token)
    return tokens_drawn


def facts(done: Completion) -> tuple[Any, ...]:
    return done.text, done.tokens, done.finish_reason, done.logprobs, done.stats.n_generated


def run_together(engine: Engine, some: list[Request], most: int) -> list[list[Piece]]:
    """All in each step; one joins at each step, and those that are finished leave."""
    pieces: list[list[Piece]] = [[] for _ in some]
    step = 0
    while any(not r.finished for r in some):
        step += 1
        live = [i for i, r in enumerate(some[:step]) if not r.finished]
        if live:
            inputs = [some[i].step_input(most) for i in live]
            for i, output in zip(live, engine.run(inputs), strict=True):
                some[i].take(output.drawn)
                pieces[i] += some[i].pieces()
    return pieces


@pytest.mark.parametrize("most", [5, PREFILL_CHUNK])
def test_together_as_alone(llm: LLM, most: int) -> None:
    """Pieces, tokens, reasons and log-probabilities of a batch are those of each by itself."""
    together = requests(llm)
    pieces = run_together(llm.engine, together, most)
    assert {r.completion.finish_reason for r in together} == {"stop", "length"}
    for i, request in enumerate(together):
        stream = llm.stream(prompt(i), **asdict(params_of(i, ignore_eos=True)))
        assert pieces[i] == list(stream)
        assert facts(request.completion) == facts(stream.completion)
        llm.engine.kv_cache.release(request.sequence)


def test_a_token_that_comes_while_pieces_are_made(llm: LLM) -> None:
    """Another thread's step may bring the last one at any time: it is told, too."""

    class Late(Request):
        to_come = 1

        @property
        def ended(self) -> bool:
            if self.to_come and self.n_drawn == 0:
                self.to_come = 0
                self.take([_native.SampleResult(5)])
            return super().ended

    one = Late([1, 2], SamplingParams(max_tokens=1), llm.tokenizer, context=llm.context)
    list(one.pieces())
    list(one.pieces())
    assert one.completion.tokens == [5]
    assert one.completion.finish_reason == "length"


def test_a_step_draws_as_the_sampler(llm: LLM) -> None:
    """From all logits, one request at a time: the same tokens, and bits of what is reported."""
    together = requests(llm)
    run_together(llm.engine, together, PREFILL_CHUNK)
    for i, request in enumerate(together):
        params = params_of(i, stop=())
        expected = by_logits(llm.engine, prompt(i), params)[: len(request.completion.tokens)]
        assert request.completion.tokens == [token for token, _, _ in expected]
        for got, (_, logprob, top) in zip(request.completion.logprobs, expected, strict=False):
            assert (got.logprob, list(got.top)) == (logprob, top)
        assert len(request.completion.logprobs) == (len(expected) if params.logprobs else 0)


def test_several_rows_of_a_sequence(llm: LLM) -> None:
    """Each row of one step sees the tokens up to its own: as if they had come one by one."""
    for i in range(len(PARAMS)):
        params = params_of(i)
        start = [*prompt(i), 1]
        tokens = [token for token, _, _ in by_logits(llm.engine, start, params)][:4]
        history = np.array([*start, *tokens[:-1]], np.int32)
        sequence = Sequence()
        llm.engine.prefill(sequence, start[:-1])
        (output,) = llm.engine.run(
            [
                StepInput(
                    sequence,
                    history[len(start) - 1 :],
                    len(tokens),
                    draw=Draw(params.native, history),
                )
            ]
        )
        assert [d.token for d in output.drawn] == tokens


def test_logits_and_tokens_in_one_step(llm: LLM) -> None:
    """Logits for those who want them, and for no others."""
    params = params_of(3)
    history = np.array([1, 2, 3], np.int32)
    a, b, c, d = (Sequence() for _ in range(4))
    outputs = llm.engine.run(
        [
            StepInput(a, [4, 5, 6], 2),
            StepInput(b, history, 1, draw=Draw(params.native, history)),
            StepInput(c, [7]),
            StepInput(d, [8, 9], 1, DecidingLogits(1)),
        ]
    )
    assert [g.logits.shape[0] for g in outputs] == [2, 0, 0, 1]
    assert [len(g.drawn) for g in outputs] == [0, 1, 0, 0]
    first, last = llm.engine.logits([[4, 5, 6], [8, 9]])
    assert outputs[0].logits.tobytes() == first[1:].tobytes()
    assert outputs[3].logits[0].max() == last[-1].max()
    assert outputs[1].drawn[0].token == by_logits(llm.engine, [1, 2, 3], params)[0][0]
    with pytest.raises(ValueError, match="history"):
        llm.engine.run([StepInput(b, [1], 1, draw=Draw(params.native, history))])


@pytest.mark.parametrize("i", [4, len(PARAMS) - 2, len(PARAMS) - 1])
def test_a_request_goes_on_without_its_pages(llm: LLM, i: int) -> None:
    """Keys and values are lost halfway, and computed again, or taken from elsewhere."""
    options: dict[str, Any] = {**PARAMS[i]}
    expected = llm.generate(prompt(i), **options, max_tokens=TOKENS, seed=1, ignore_eos=True)
    params = SamplingParams(**options, max_tokens=TOKENS, seed=1)
    request = Request(prompt(i), params, llm.tokenizer, context=llm.context)
    for step in range(TOKENS + 8):
        if step == 4:
            llm.engine.kv_cache.release(request.sequence)
        if step == 8:
            request.resume_from(llm.engine.kv_cache.pool.fork(request.sequence, 30))
        if not request.finished:
            (output,) = llm.engine.run([request.step_input()])
            request.take(output.drawn)
            list(request.pieces())
    assert request.completion.tokens == expected.tokens
    assert request.completion.text == expected.text


def test_a_request_without_an_engine(llm: LLM) -> None:
    """It advances by logits or by any token, and ends as it would with one."""
    vocab = llm.engine.model.config.vocab_size
    params = SamplingParams(max_tokens=3)
    request = Request([1, 2], params, llm.tokenizer, context=10, ends=frozenset([9]))
    step_input = request.step_input(1)
    assert (step_input.tokens, step_input.wanted, step_input.draw) == ([1], 0, None)
    request.sequence.length = 1
    step_input = request.step_input(1)
    assert (step_input.tokens, step_input.wanted) == ([2], 1)
    assert step_input.draw is not None
    assert step_input.draw.params.deciding == (1, 0)
    logits = np.zeros(vocab, np.float32)
    logits[5] = 1
    request.take([request.draw(logits)])
    (piece,) = request.pieces()
    assert (piece.token, request.ended, request.finished) == (5, False, False)
    assert request.tokens.tolist() == [1, 2, 5]
    request.take([_native.SampleResult(9)])
    assert (request.ended, request.finished) == (True, False)
    assert list(request.pieces()) == []
    assert (request.finished, request.completion.finish_reason) == (True, "stop")
    assert request.completion.tokens == [5]
    short = Request([1] * 9, params, llm.tokenizer, context=10)
    short.take([_native.SampleResult(3)] * 2)
    list(short.pieces())
    assert (short.finished, short.completion.finish_reason) == (True, "length")
    assert short.completion.tokens == [3]
    assert Request([1], replace(params, max_tokens=0), llm.tokenizer, context=10).ended
    logits[7] = np.nan
    fresh = Request([1], params, llm.tokenizer, context=10)
    with pytest.raises(NonFiniteError, match="logits"):
        fresh.take([fresh.draw(logits)])


def test_what_is_taken_is_told_when_it_is_asked_for(llm: LLM) -> None:
    """Text lags behind the tokens; an end before its time tells what there is, and then raises."""
    params = SamplingParams(max_tokens=8, stop=("never",), choice=2)
    request = Request([1, 2], params, llm.tokenizer, context=50)
    assert not request.has_news
    request.take([_native.SampleResult(t) for t in (5, 6, 7)])
    assert (request.unread, request.completion.tokens) == (3, [])
    assert [(p.token, p.index) for p in request.pieces()] == [(5, 2), (6, 2), (7, 2)]
    assert not request.has_news
    request.take([_native.SampleResult(8)])
    request.end("error", NonFiniteError("x"))
    request.end("cancelled")
    request.take([_native.SampleResult(9)])
    pieces = request.pieces()
    assert next(pieces).token == 8
    with pytest.raises(NonFiniteError, match="x"):
        list(pieces)
    assert (request.finished, request.completion.finish_reason) == (True, "error")
    assert request.completion.tokens == [5, 6, 7, 8]
    assert list(request.pieces()) == []


def test_choices_draw_with_numbers_of_their_own(llm: LLM) -> None:
    """Choice 0 is that of a request that names none."""
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 2.0, "seed": 4, "ignore_eos": True}
    answers = [tuple(llm.generate([1, 2], **options, choice=i).tokens) for i in range(4)]
    assert answers[0] == tuple(llm.generate([1, 2], **options).tokens)
    assert len(set(answers)) == 4


def test_tops_and_twins_are_refused(llm: LLM) -> None:
    """Before anything is computed."""
    sequence = Sequence()
    with pytest.raises(RequestError, match="twice"):
        llm.engine.run([StepInput(sequence, [1]), StepInput(sequence, [2])])
    with pytest.raises(RequestError, match="deciding"):
        llm.engine.run([StepInput(sequence, [1], 1, DecidingLogits(-1))])
    assert len(sequence.pages) == 0
