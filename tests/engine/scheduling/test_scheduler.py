"""Which requests share a step; the tests have a clock of their own."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scheduling import Bench

from sterna import LLM
from sterna.engine import Engine, PrefixCache, Request, StepInput
from sterna.engine.kv_cache.page_pool import PagesMissing
from sterna.engine.kv_cache.sequence import PAGE, Sequence
from sterna.engine.request import MOST_UNREAD
from sterna.errors import NonFiniteError, RequestError


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1)


def test_short_prompts_come_first_and_long_ones_do_not_starve(llm: LLM) -> None:
    bench = Bench(llm).learnt()
    long = bench.add(8000, 1)
    bench.step()
    short = bench.add(10, 1)
    bench.until(lambda: short.finished)
    assert long.left > 7000
    for i in range(5000):  # as many short ones as fill the engine, for ever
        if long.finished:
            break
        bench.requests = [r for r in bench.requests if not r.finished]
        for _ in range(3):
            bench.add(30 + i % 7, 1)
        bench.step()
    assert long.finished


def test_keys_share_the_time(llm: LLM) -> None:
    """One with many requests gets no more of a step than one with few; a new one saved none up."""
    bench = Bench(llm).learnt()
    many = [bench.add(1500, 1, key="a") for _ in range(6)]
    bench.until(lambda: sum(r.finished for r in many) == 2)
    few = [bench.add(1500, 1, key="b") for _ in range(2)]
    bench.until(lambda: all(r.finished for r in few))
    assert sum(r.finished for r in many) in (3, 4)
    bench.until(lambda: all(r.finished for r in many))


def test_priority(llm: LLM) -> None:
    bench = Bench(llm).learnt()
    low, high = bench.add(400, 1), bench.add(900, 1, priority=3)
    bench.until(lambda: high.finished)
    assert not low.finished
    bench.until(lambda: low.finished)


def test_deadlines_end_the_queued_and_the_running(llm: LLM) -> None:
    bench = Bench(llm, pages=4, max_running=1)
    running = bench.add(10, 1000, deadline_s=2.0)
    queued = bench.add(10, 5, deadline_s=1.0)
    bench.until(lambda: queued.finished)
    assert queued.completion.finish_reason == "deadline"
    assert queued.completion.tokens == []
    bench.until(lambda: running.finished)
    assert running.completion.finish_reason == "deadline"
    assert running.completion.tokens
    assert bench.engine.kv_cache.pool.free == 4


def test_cancelled_between_steps(llm: LLM) -> None:
    """No event follows, and the pages are free at once."""
    bench = Bench(llm)
    one, other = bench.add(10), bench.add(300)
    bench.step()
    bench.scheduler.cancel(one)
    bench.scheduler.cancel(one)
    assert bench.engine.kv_cache.pool.free == 10_000 - len(other.sequence.pages)
    assert all(event.request is other for _ in range(5) for event in bench.step())
    assert one.completion.finish_reason == "cancelled"
    bench.scheduler.cancel(other)
    assert bench.scheduler.step() == []
    assert not bench.scheduler.busy
    assert bench.engine.kv_cache.pool.free == 10_000


@pytest.mark.parametrize("known", [0, 1, 2])
def test_cancelled_while_a_step_begins(
    llm: LLM, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By another thread, before it is fed: its pages are free behind the step, whoever has it."""
    bench = Bench(llm)
    one, other = bench.add(10), bench.add(10)
    bench.until(lambda: one.n_drawn >= known)
    step_input = one.step_input

    def cancelled(*args: Any) -> StepInput:
        bench.scheduler.cancel(one)
        return step_input(*args)

    monkeypatch.setattr(one, "step_input", cancelled)
    bench.step()
    assert len(bench.engine.steps[-1]) == 2
    assert bench.engine.kv_cache.pool.free == 10_000 - len(other.sequence.pages)


def test_a_step_input_is_of_one_sequence(llm: LLM) -> None:
    """Also where a cancel takes it away between two lines."""

    class Leaving(Request):
        @property
        def sequence(self) -> Any:
            return self.given.pop(0) if len(self.given) > 1 else self.given[0]

    bench = Bench(llm)
    one = bench.add(10)
    bench.until(lambda: one.n_drawn > 2)
    length, sequence = one.sequence.length, one.__dict__.pop("sequence")
    one.given, one._drop_drafts = [sequence, Sequence()], lambda: None
    one.__class__ = Leaving
    made = one.step_input(1)
    assert made.sequence is sequence
    assert made.tokens.tolist() == one.tokens[length : length + 1].tolist()


def test_pages_run_out_and_the_youngest_gives_way(llm: LLM) -> None:
    """Every request ends with all its tokens; the oldest is never set back."""
    bench = Bench(llm, pages=7)
    requests = [bench.add(PAGE, 2 * PAGE) for _ in range(4)]
    oldest, longest = requests[0], 0
    while not all(r.finished for r in requests):
        bench.step()
        if not oldest.finished:
            assert oldest.sequence.length >= longest
            longest = oldest.sequence.length
    assert all(len(r.completion.tokens) == 2 * PAGE for r in requests)
    assert [r.completion.tokens for r in requests] == [requests[0].completion.tokens] * 4
    assert bench.scheduler.preemptions > 0
    assert bench.engine.kv_cache.pool.free == 7


def test_many_requests_leave_nothing(llm: LLM) -> None:
    """Of mixed lengths, some cancelled: pages are those of the cache, and no object stays."""
    bench = Bench(llm, pages=200)
    cache = bench.scheduler.cache = PrefixCache(bench.engine.kv_cache.pool, 20)
    blocks = []
    for _ in range(3):
        for i in range(90):
            request = bench.add(1 + i * 37 % 300, 1 + i % 9)
            if i % 10 == 3:
                bench.scheduler.step()
                bench.scheduler.cancel(request)
        bench.until(lambda: all(r.finished for r in bench.requests))
        bench.requests.clear()
        bench.engine.steps.clear()
        del request
        gc.collect()
        blocks.append(sys.getallocatedblocks())
    assert blocks[2] < blocks[1] + 100
    assert bench.engine.kv_cache.pool.free == 200
    assert cache.pages <= 20
    cache.clear()
    assert bench.engine.kv_cache.pool.ref_counts().sum() == 0


def test_what_never_fits_is_refused(llm: LLM) -> None:
    """A prompt at once; an answer when the pool ends, alone."""
    bench = Bench(llm, pages=4)
    with pytest.raises(RequestError, match="must fit its 4 pages"):
        bench.add(5 * PAGE)
    other = bench.add(10, 40)
    greedy = bench.add(PAGE, 10 * PAGE)
    with pytest.raises(PagesMissing, match="missing"):
        bench.until(lambda: greedy.finished)
    assert greedy.completion.finish_reason == "error"
    assert len(greedy.completion.tokens) == 3 * PAGE + 1
    bench.until(lambda: other.finished)
    assert other.completion.finish_reason == "length"
    assert bench.engine.kv_cache.pool.free == 4


def test_a_failure_ends_its_request_alone(llm: LLM) -> None:
    bench = Bench(llm)
    good, bad, other = (bench.add(n, 5) for n in (10, 77, 20))
    bench.engine.broken = lambda step_input: step_input.sequence is bad.sequence
    events = [event for event in bench.scheduler.step() if event.error]
    assert [event.request for event in events] == [bad]
    assert isinstance(bad.error, NonFiniteError)
    with pytest.raises(NonFiniteError, match="layer 1"):
        list(bad.pieces())
    bench.requests.remove(bad)
    bench.until(lambda: good.finished and other.finished)
    assert len(good.completion.tokens) == len(other.completion.tokens) == 5
    assert bench.engine.kv_cache.pool.free == 10_000


def test_a_request_without_a_step_input_ends_alone(llm: LLM) -> None:
    """One whose constraint leaves no token, say; the others get those of the same step."""
    bench = Bench(llm)
    bad, good = bench.add(10, 5), bench.add(20, 5)

    def step_input(*_: Any) -> StepInput:
        raise RequestError("answer: must have a next token")

    bad.step_input = step_input
    events = {event.request: event for event in bench.scheduler.step()}
    assert isinstance(events[bad].error, RequestError)
    assert events[good].error is None
    assert good.unread == 1
    assert bad.ended


def test_who_is_not_read_is_left_out(llm: LLM) -> None:
    """A few tokens ahead; it gives its pages up where others need them, and goes on later."""
    bench = Bench(llm, pages=3)
    silent = bench.add(PAGE, PAGE)
    bench.requests.clear()
    while bench.scheduler.step():
        pass
    assert silent.unread == MOST_UNREAD
    assert len(silent.sequence.pages) == 2
    loud = bench.add(PAGE, PAGE + 10)
    bench.until(lambda: loud.finished)
    assert len(loud.completion.tokens) == PAGE + 10
    bench.requests.append(silent)
    list(silent.pieces())
    bench.until(lambda: silent.finished)
    assert silent.completion.tokens[:PAGE] == loud.completion.tokens[:PAGE]


def test_an_interrupted_step_is_as_if_it_had_not_been(llm: LLM) -> None:
    """In the engine, or when some have taken their tokens and others have not."""
    expected = None
    for at in range(12):
        bench = Bench(llm)
        requests = [bench.add(n, 4) for n in (3, 30, 70)]
        taken = [0]

        def take(drawn: Any, request: Request, taken: list[int] = taken, at: int = at) -> None:
            taken[0] += 1
            if taken[0] == at:
                raise KeyboardInterrupt
            Request.take(request, drawn)

        for request in requests:
            request.take = lambda drawn, r=request, take=take: take(drawn, r)
        while not all(r.finished for r in requests):
            try:
                bench.step()
            except KeyboardInterrupt:
                assert at
        answers = [r.completion.tokens for r in requests]
        expected = expected or answers
        assert answers == expected
        assert bench.engine.kv_cache.pool.free == 10_000


def test_answers_of_a_list(llm: LLM) -> None:
    """Side by side as alone, with the real engine; choices, too."""
    prompts = ["def f(", "class A:", "import ", "x = 1\n" * 40]
    options: dict[str, Any] = {"max_tokens": 9, "temperature": 1.5, "seed": 3, "logprobs": 2}
    alone = [llm.generate(prompt, **options) for prompt in prompts]
    for many in (llm.generate(prompts, **options), llm.generate(prompts * 40, **options)[-4:]):
        for one, expected in zip(many, alone, strict=True):
            assert (one.tokens, one.text, one.logprobs) == (
                expected.tokens, expected.text, expected.logprobs,
            )  # fmt: skip
    ids = [llm.tokenizer.encode(prompt) for prompt in prompts]
    assert [c.tokens for c in llm.generate(ids, **options)] == [c.tokens for c in alone]
    choices = llm.choices(prompts[3], 3, **options)
    assert [c.tokens for c in choices] == [
        llm.generate(prompts[3], **options, choice=i).tokens for i in range(3)
    ]
    with pytest.raises(RequestError, match="must not be empty"):
        llm.generate(["x", ""])
    with pytest.raises(RequestError, match="n: must"):
        llm.choices("x", 0)
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def test_an_engine_is_replaced(llm: LLM) -> None:
    """Requests go to the one that an LLM has."""
    other = LLM.__new__(LLM)
    other.__dict__.update(llm.__dict__)
    other._attach(Engine(llm.engine.model, threads=1), None)
    assert other.engine_loop.scheduler.engine is other.engine
    assert llm.engine_loop.scheduler.engine is llm.engine
    assert SimpleNamespace(**vars(other)).tokenizer is llm.tokenizer
