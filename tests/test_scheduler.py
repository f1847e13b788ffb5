"""Scheduling with a clock of its own: an engine that computes nothing and takes the time that a
formula says, and requests whose tokens are the positions that they are drawn at.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sterna import LLM, _native
from sterna.engine import (
    Engine,
    Feed,
    Given,
    PagePool,
    PrefixCache,
    Request,
    SamplingParams,
    Scheduler,
)
from sterna.engine.costs import Costs, Work
from sterna.engine.pages import PagesMissing
from sterna.engine.request import AHEAD
from sterna.engine.scheduler import Event
from sterna.engine.sequence import PAGE, pages_of
from sterna.errors import NonFiniteError, RequestError

CONTEXT = 1 << 14
BASE_MS, TOKEN_MS = 30.0, 5.0


class Clock:
    """Seconds, that pass where somebody says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeEngine:
    """The pages of an engine, and a step that takes 30 ms and 5 ms a token."""

    def __init__(self, clock: Clock, pages: int = 10_000) -> None:
        self.pool, self.clock = PagePool(pages, lambda source, target: None), clock
        self.steps: list[list[int]] = []  # tokens of each feed
        self.broken: Callable[[Feed], bool] = lambda feed: False
        self.rewind = lambda sequence, length: self.pool.cut(sequence, length)
        self.forgets = False
        self.snapshot = lambda sequence, keep: True
        self.noise, self.pair_ms = lambda: 1.0, 0.0

    def run(self, feeds: Sequence[Feed]) -> list[Given]:
        self.pool.reserve([(feed.sequence, len(feed.tokens)) for feed in feeds])
        tokens = [len(feed.tokens) for feed in feeds]
        seen = sum(
            n * (feed.sequence.length + n / 2) for n, feed in zip(tokens, feeds, strict=True)
        )
        ms = BASE_MS + TOKEN_MS * sum(tokens) + seen * self.pair_ms
        self.clock.now += ms * self.noise() / 1e3
        if any(map(self.broken, feeds)):
            raise NonFiniteError("layer 1: not finite")
        self.steps.append(tokens)
        given = []
        for feed in feeds:
            feed.sequence.length += len(feed.tokens)
            token = feed.sequence.length % 200
            given.append(Given(None, [_native.SampleResult(token)] * feed.wanted))  # type: ignore[arg-type]
        return given


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1)


class Bench:
    """A scheduler of a fake engine, and the requests that it was given."""

    def __init__(self, llm: LLM, pages: int = 10_000, **options: Any) -> None:
        self.llm, self.clock = llm, Clock()
        self.engine = FakeEngine(self.clock, pages)
        engine: Any = self.engine
        self.scheduler = Scheduler(
            engine, clock=self.clock, **{"step_ms": 130.0, "prompt_step_ms": 500.0, **options}
        )
        self.requests: list[Request] = []
        self.added = 0

    def add(self, prompt: int | Sequence[int], tokens: int = 1000, **place: Any) -> Request:
        """Adds one; prompt: its tokens, or how many, which begin as no other's."""
        self.added += 1
        ids = [self.added % 199] * prompt if isinstance(prompt, int) else prompt
        params = SamplingParams(max_tokens=tokens)
        request = Request(
            ids, params, self.llm.tokenizer, context=CONTEXT, completion=None, **place
        )
        self.scheduler.add(request)
        self.requests.append(request)
        return request

    def step(self) -> list[Event]:
        """One, and everybody reads what came."""
        events = self.scheduler.step()
        for request in self.requests:
            for _ in request.pieces():
                pass
        return events

    def until(self, done: Callable[[], bool], most: int = 5000) -> int:
        for steps in range(most):
            if done():
                return steps
            assert self.step(), "it is idle"
        raise AssertionError("it does not end")

    def learnt(self) -> Bench:
        """With costs that it knows from a few requests of before."""
        for length in (500, 200, 30):
            request = self.add(length, 20)
            self.until(lambda request=request: request.finished)
        self.engine.steps.clear()
        return self


def test_costs_are_learnt() -> None:
    """A line, and what depths add, to a tenth, through noise and outliers; never falling."""
    costs = Costs()
    assert costs.ms(Work(7)) == 0.0

    def truth(work: Work) -> float:
        return 30 + 5 * work.tokens + work.read * 0.01 + work.rows * 1e-4

    for i in range(600):
        tokens = (1, 3, 16, 48, 128, 300, 512)[i % 7]
        work = Work().plus(tokens, i * 37 % 4000)
        noise = 4.0 if i % 50 == 49 else (0.97, 1.0, 1.03)[i % 3]
        costs.learn(work, truth(work) * noise)
    for tokens in (1, 3, 16, 48, 128, 256, 512):
        for depth in (0, 1000, 3000):
            work = Work().plus(tokens, depth)
            assert costs.ms(work) == pytest.approx(truth(work), rel=0.1)
    times = [costs.ms(Work(n)) for n in range(1, 700)]
    assert times == sorted(times)
    still = Costs()
    for _ in range(9):
        still.learn(Work(4), 1e-9)
    assert still.ms(Work(1)) > 0
    costs.learn(Work(0), 5.0)
    costs.learn(Work(1), float("nan"))
    assert [costs.ms(Work(n)) for n in range(1, 700)] == times


def test_what_was_slow_once_is_not_slow_for_ever() -> None:
    """A machine that was busy before a prompt comes in, and is idle since; few tokens and many."""
    costs = Costs()
    for _ in range(30):
        costs.learn(Work(4), 500.0)
    costs.learn(Work(64), 9000.0)
    for _ in range(30):
        costs.learn(Work(10), 80.0)
    assert costs.ms(Work(4)) <= costs.ms(Work(10)) == pytest.approx(80, rel=0.2)
    assert costs.ms(Work(20)) < 200


def test_chunks_fit_what_is_left() -> None:
    """They make steps of multiples of 16, or are all that is left, or fewer than 16, as many as
    fit; steps of at most 512."""
    costs = Costs()
    assert costs.chunk(Work(), 0, 1000, 100.0) == 64  # nothing is known yet
    assert costs.chunk(Work(), 0, 1000, float("inf")) == 512
    for tokens in (1, 16, 64, 256, 512):
        costs.learn(Work(tokens), 30 + 5 * tokens)
    for budget in range(0, 3000, 7):
        for left in (1, 15, 16, 17, 500, 2000):
            chunk = costs.chunk(Work(4), 0, left, float(budget))
            assert chunk == left or (4 + chunk) % 16 == 0 or chunk < 16
            assert chunk + 4 <= 512
            assert chunk == 0 or costs.ms(Work(4 + chunk)) <= budget
            more = chunk + (1 if (4 + chunk) % 16 else 16)
            assert chunk == left or costs.ms(Work(4 + more)) > budget or more > 508


def test_decoding_goes_on_while_a_prompt_comes_in(llm: LLM) -> None:
    """Each step has a token of all four and as much of the prompt as its time allows."""
    bench = Bench(llm).learnt()
    four = [bench.add(5) for _ in range(4)]
    bench.until(lambda: all(r.left == 1 for r in four))
    long = bench.add(4096)
    bench.engine.steps.clear()
    began = bench.clock.now
    steps = bench.until(lambda: long.left == 1)
    for step in bench.engine.steps[:-1]:
        assert step[:4] == [1] * 4
        assert BASE_MS + TOKEN_MS * sum(step) <= 1.1 * 130
    assert (bench.clock.now - began) / steps >= 0.08  # and its time is used


def test_steps_keep_to_their_time(llm: LLM) -> None:
    """As a prompt gets long, with noise and with disturbed steps, also where decoding is slow."""
    for step_ms in (130.0, 40.0):
        bench, choose = Bench(llm, step_ms=step_ms), random.Random(1)
        bench.engine.pair_ms = 1.2e-3
        bench.engine.noise = lambda choose=choose: (
            choose.gauss(1, 0.05) * choose.choice([1] * 99 + [2])
        )
        four = [bench.add(16, 10_000) for _ in range(4)]
        bench.until(lambda four=four: all(r.generated > 20 for r in four))
        long, times = bench.add(2000, 1), list[float]()
        while not long.finished:
            began = bench.clock.now
            bench.step()
            times.append(1e3 * (bench.clock.now - began))
        target = max(step_ms, 1.25 * (BASE_MS + 4 * TOKEN_MS))
        times.sort()
        assert times[int(0.95 * len(times))] < 1.4 * target
        assert 0.75 * target < times[len(times) // 2] < 1.1 * target


def test_a_prompt_alone_has_longer_steps(llm: LLM) -> None:
    bench = Bench(llm).learnt()
    request = bench.add(600)
    bench.until(lambda: request.left == 1)
    first = bench.engine.steps[0]
    assert first[0] % 16 == 0
    assert 300 <= BASE_MS + TOKEN_MS * first[0] <= 500
    unlimited = Bench(llm, prompt_step_ms=float("inf"))
    request = unlimited.add(1200)
    unlimited.until(lambda: request.left == 1)
    assert unlimited.engine.steps[:3] == [[512], [512], [176]]


def test_progress_where_nothing_fits(llm: LLM) -> None:
    """Steps that decoding alone makes too long are a quarter longer, for a prompt, and have a
    token of it whatever that takes; but for one of eight."""
    for decoding in (1, 20):
        bench = Bench(llm, step_ms=1.0).learnt()
        others = [bench.add(3) for _ in range(decoding)]
        bench.until(lambda others=others: all(r.left == 1 for r in others))
        long = bench.add(200)
        bench.engine.steps.clear()
        bench.until(lambda long=long: long.left == 1)
        chunks = [sum(step[decoding:]) for step in bench.engine.steps[:-1]]
        share = TOKEN_MS * sum(chunks) / len(chunks) / (BASE_MS + TOKEN_MS * decoding)
        assert 0.1 < share < 0.35
        assert chunks.count(0) <= len(chunks) // 8 + 1


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


def test_prompts_that_begin_alike_are_computed_once(llm: LLM) -> None:
    """Those that come later wait for the first, whose turns are theirs, and for no other."""
    bench = Bench(llm).learnt()
    system = list(range(150)) * 4
    first = bench.add([*system, *[7] * 900], 5)
    bench.step()
    alike = [bench.add([*system, i, i], 5) for i in range(4)]
    other, salted = bench.add(100, 5), bench.add([*system, 1], 5, salt="s")
    bench.until(lambda: other.finished)
    bench.until(lambda: first.sequence.length > 200 and salted.finished)
    assert all(r.sequence.length == 0 for r in alike)
    bench.until(lambda: all(r.finished for r in alike))
    assert first.left > 500  # shorter ones come first, and yet it has computed what they wait for
    assert [r.completion.stats.n_cached for r in alike] == [600] * 4
    bench.until(lambda: first.finished)
    assert salted.completion.stats.n_cached == 0
    assert bench.engine.pool.free == 10_000


def test_who_is_waited_for_goes(llm: LLM) -> None:
    """Then one of those that wait computes it for all."""
    bench = Bench(llm).learnt()
    system = list(range(150)) * 4
    requests = [bench.add([*system, i], 3) for i in range(4)]
    for gone in requests[:2]:
        bench.step()
        assert [r.sequence.length > 0 for r in requests].count(True) == 1
        bench.scheduler.cancel(gone)
    bench.until(lambda: all(r.finished for r in requests))
    assert [r.completion.stats.n_cached for r in requests[2:]] == [0, 600]
    assert bench.engine.pool.free == 10_000


def test_what_is_little_is_not_waited_for(llm: LLM) -> None:
    """A step more reads the weights once more, which takes as long as some tokens."""
    bench = Bench(llm).learnt()
    requests = [bench.add([1, 2, 3, 4, 5, i, *[i] * 9]) for i in range(6, 9)]
    bench.step()
    assert all(r.generated == 1 for r in requests)


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
    assert bench.engine.pool.free == 4


def test_cancelled_between_steps(llm: LLM) -> None:
    """No event follows, and the pages are free at once."""
    bench = Bench(llm)
    one, other = bench.add(10), bench.add(300)
    bench.step()
    bench.scheduler.cancel(one)
    bench.scheduler.cancel(one)
    assert bench.engine.pool.free == 10_000 - len(other.sequence.pages)
    assert all(event.request is other for _ in range(5) for event in bench.step())
    assert one.completion.finish_reason == "cancelled"
    bench.scheduler.cancel(other)
    assert bench.scheduler.step() == []
    assert not bench.scheduler.busy
    assert bench.engine.pool.free == 10_000


def test_pages_run_out_and_the_youngest_gives_way(llm: LLM) -> None:
    """Every request ends with all its tokens; the oldest is never set back."""
    bench = Bench(llm, pages=6)
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
    assert bench.engine.pool.free == 6


def test_many_requests_leave_nothing(llm: LLM) -> None:
    """Of mixed lengths, some cancelled: pages are those of the cache, and no object stays."""
    bench = Bench(llm, pages=200)
    cache = bench.scheduler.cache = PrefixCache(bench.engine.pool, 20)
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
    assert bench.engine.pool.free == 200
    assert cache.pages <= 20
    cache.clear()
    assert bench.engine.pool.holders().sum() == 0


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
    assert bench.engine.pool.free == 4


def test_a_failure_ends_its_request_alone(llm: LLM) -> None:
    bench = Bench(llm)
    good, bad, other = (bench.add(n, 5) for n in (10, 77, 20))
    bench.engine.broken = lambda feed: feed.sequence is bad.sequence
    events = [event for event in bench.scheduler.step() if event.error]
    assert [event.request for event in events] == [bad]
    assert isinstance(bad.error, NonFiniteError)
    with pytest.raises(NonFiniteError, match="layer 1"):
        list(bad.pieces())
    bench.requests.remove(bad)
    bench.until(lambda: good.finished and other.finished)
    assert len(good.completion.tokens) == len(other.completion.tokens) == 5
    assert bench.engine.pool.free == 10_000


def test_a_request_that_cannot_feed_ends_alone(llm: LLM) -> None:
    """One whose constraint leaves no token, say; the others get those of the same step."""
    bench = Bench(llm)
    bad, good = bench.add(10, 5), bench.add(20, 5)

    def feed(*_: Any) -> Feed:
        raise RequestError("answer: must have a next token")

    bad.feed = feed  # type: ignore[method-assign]
    events = {event.request: event for event in bench.scheduler.step()}
    assert isinstance(events[bad].error, RequestError)
    assert events[good].error is None
    assert good.untold == 1
    assert bad.ended


def test_who_is_not_read_is_left_out(llm: LLM) -> None:
    """A few tokens ahead; it gives its pages up where others need them, and goes on later."""
    bench = Bench(llm, pages=3)
    silent = bench.add(PAGE, PAGE)
    bench.requests.clear()
    while bench.scheduler.step():
        pass
    assert silent.untold == AHEAD
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
            request.take = lambda drawn, r=request, take=take: take(drawn, r)  # type: ignore[method-assign]
        while not all(r.finished for r in requests):
            try:
                bench.step()
            except KeyboardInterrupt:
                assert at
        answers = [r.completion.tokens for r in requests]
        expected = expected or answers
        assert answers == expected
        assert bench.engine.pool.free == 10_000


def test_load(llm: LLM) -> None:
    bench = Bench(llm, max_running=2).learnt()
    assert bench.scheduler.load.predicted_s == 0
    for _ in range(4):
        bench.add(640, 5)
    load = bench.scheduler.load
    assert (load.running, load.waiting, load.waiting_tokens) == (0, 4, 4 * 640)
    assert load.predicted_s == pytest.approx(4 * 640 * TOKEN_MS / 1e3, rel=0.3)
    bench.step()
    load = bench.scheduler.load
    assert load.running >= 1
    assert load.pages_used > 0
    assert load.pages == 10_000
    bench.until(lambda: all(r.finished for r in bench.requests))
    assert pages_of(bench.scheduler.load.pages_used) == 0


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
    assert llm.engine.pool.free == llm.engine.pool.count


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("name", ["bitnet-multiply", "qwen3_5", "mistral-window"])
def test_choices_share_a_prompt(checkpoint: Callable[[str], Path], name: str, cached: bool) -> None:
    """It is computed once; answers are those of requests that name the choice."""
    llm = LLM(checkpoint(name), threads=1, prefix_cache=cached)
    prompt = [i * 7 % 200 for i in range(5 * PAGE + 20)]
    options: dict[str, Any] = {"max_tokens": 9, "temperature": 1.5, "seed": 3, "logprobs": 2}
    choices = llm.choices(prompt, 5, **options)
    assert [c.stats.n_cached for c in choices] == [0] + [len(prompt) - 1] * 4
    alone = [llm.generate(prompt, **options, choice=i) for i in range(5)]
    assert [(c.tokens, c.logprobs) for c in choices] == [(c.tokens, c.logprobs) for c in alone]
    assert llm.engine.pool.free == llm.engine.pool.count
    # One whose leader ends before its prompt is computed goes on by itself.
    first, second = llm.requests(prompt[::-1], 2, options)
    llm.driver.add(second)
    llm.driver.add(first)
    llm.driver.cancel(first)
    list(llm.driver.pieces(second))
    assert second.completion.tokens == llm.generate(prompt[::-1], **options, choice=1).tokens


def test_an_engine_is_replaced(llm: LLM) -> None:
    """Requests go to the one that an LLM has."""
    other = LLM.__new__(LLM)
    other.__dict__.update(llm.__dict__)
    other.engine = Engine(llm.engine.model, threads=1)
    assert other.driver.scheduler.engine is other.engine
    assert llm.driver.scheduler.engine is llm.engine
    assert SimpleNamespace(**vars(other)).tokenizer is llm.tokenizer
