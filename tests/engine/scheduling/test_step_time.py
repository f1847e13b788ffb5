"""How long steps are, by a clock of the tests' own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from scheduling import BASE_MS, TOKEN_MS, Bench

from sterna import LLM, AsyncLLM


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1)


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
        bench.until(lambda four=four: all(r.n_drawn > 20 for r in four))
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
    """Steps that decoding alone makes too long are longer for a prompt, by the share of a request
    that decodes or a quarter, and have a token of it whatever that takes; but for one of eight."""
    for decoding in (1, 20):
        bench = Bench(llm, step_ms=1.0).learnt()
        others = [bench.add(3) for _ in range(decoding)]
        bench.until(lambda others=others: all(r.left == 1 for r in others))
        long = bench.add(200)
        bench.engine.steps.clear()
        bench.until(lambda long=long: long.left == 1)
        chunks = [sum(step[decoding:]) for step in bench.engine.steps[:-1]]
        share = TOKEN_MS * sum(chunks) / len(chunks) / (BASE_MS + TOKEN_MS * decoding)
        assert 0.4 < share / max(0.25, 1 / decoding) < 1.4
        assert chunks.count(0) <= len(chunks) // 8 + 1


def test_short_prompts_join_decoding(llm: LLM) -> None:
    """The more requests wait, in proportion to those that decode, the longer steps are, up to the
    length of steps with prompts alone: more tokens a second, and everybody waits less."""
    bench = Bench(llm, step_ms=60.0).learnt()
    first = bench.add(5, 40)
    bench.until(lambda: first.left == 1)
    others = [bench.add(20, 40) for _ in range(15)]
    bench.engine.steps.clear()
    began = bench.clock.now
    while not all(r.n_drawn for r in others):
        decoding = sum(r.left == 1 and not r.finished for r in bench.requests)
        waiting = sum(not r.n_drawn for r in others)
        before = bench.clock.now
        bench.step()
        ms, alone = 1e3 * (bench.clock.now - before), BASE_MS + TOKEN_MS * decoding
        most = max(60.0, alone * (1 + max(0.25, 2 * min(waiting, 63) / decoding)))
        assert alone <= ms <= 1.1 * min(most, max(500.0, 1.25 * alone))
    # Each prompt takes 100 ms; in steps of 60 ms, of which decoding leaves little, all take 8.4 s.
    assert bench.clock.now - began < 5.5
    assert len(bench.engine.steps) < 50


def test_what_does_not_join_makes_no_step_longer(llm: LLM) -> None:
    """A prompt that takes several steps, or one without an answer of several tokens; many, too."""
    bench = Bench(llm, step_ms=100.0).learnt()
    four = [bench.add(5) for _ in range(4)]
    bench.until(lambda: all(r.left == 1 for r in four))
    long = [bench.add(600, 1000), *(bench.add(30, 1) for _ in range(20))]
    while not all(r.n_drawn for r in long):
        before = bench.clock.now
        bench.step()
        alike = long[0].left < 100  # its rest is short at last
        assert 1e3 * (bench.clock.now - before) < (130 if alike else 110)


def test_steps_are_as_long_as_nobody_reads_along(llm: LLM) -> None:
    """The requests are a list of prompts; each answer is read at its end."""
    bench = Bench(llm, step_ms=60.0, prompt_step_ms=float("inf")).learnt()
    requests = [bench.add(32, 40) for _ in range(32)]
    for request in requests:
        request.is_streamed = False
    bench.until(lambda: all(r.finished for r in requests))
    assert len(bench.engine.steps) == 2 + 40  # 1024 tokens of prompts, 480 with the first 15


def test_one_who_reads_along_is_kept_from_longer_steps(llm: LLM) -> None:
    """Many others do not stream, and one does."""
    bench = Bench(llm, step_ms=60.0).learnt()
    reader = bench.add(5)
    bench.until(lambda: reader.left == 1)
    others = [bench.add(400, 5) for _ in range(4)]
    for request in others:
        request.is_streamed = False
    while not all(r.finished for r in others):
        before, short = bench.clock.now, any(1 < r.left < 100 for r in others)
        decoding = sum(r.left == 1 and not r.finished for r in bench.requests)
        bench.step()
        most = (60, (1 + max(0.25, 1 / max(1, decoding))) * (BASE_MS + TOKEN_MS * decoding))
        assert short or 1e3 * (bench.clock.now - before) < 1.25 * max(most)
    assert not reader.finished


@pytest.mark.parametrize("step_ms", [130.0, 60.0])
def test_a_neighbours_long_prompt(llm: LLM, step_ms: float) -> None:
    """A running answer keeps its pace from the first to the last token of a prompt of 7,000, whose
    attention makes each of its tokens dearer; and the prompt has what is left of the steps."""
    bench = Bench(llm, step_ms=step_ms).learnt()
    bench.engine.pair_ms = 1.2e-3
    answer = bench.add(20, 10_000)
    bench.until(lambda: answer.left == 1)
    long, gaps = bench.add(7000, 5), list[float]()
    began = bench.clock.now
    while not long.n_drawn:
        before, had = bench.clock.now, answer.n_drawn
        bench.step()
        assert answer.n_drawn == had + 1
        gaps.append(1e3 * (bench.clock.now - before))
    gaps.sort()
    assert gaps[int(0.95 * len(gaps))] < 1.2 * max(step_ms, 2 * (BASE_MS + TOKEN_MS))
    assert gaps[-1] < 1.2 * 500  # where its rest is short, it joins
    alone = 7000 * TOKEN_MS + 7000 * 7000 / 2 * 1.2e-3
    busy = 1 - (BASE_MS + TOKEN_MS) / step_ms
    assert 1e3 * (bench.clock.now - began) < 1.5 * alone / busy


def test_who_waits_for_a_whole_answer(llm: LLM) -> None:
    """It has the pace of a stream; one that nobody waits for may be slower."""

    async def ask() -> None:
        async with AsyncLLM(llm) as engine:
            whole, nobodys = (engine.submit("a", max_tokens=2) for _ in range(2))
            nobodys.read_at_end()
            await whole.result()
            await nobodys.result()
            assert [r.is_streamed for r in (*whole.requests, *nobodys.requests)] == [True, False]

    asyncio.run(ask())


def test_a_request_is_refused_by_its_own_wait(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's question is taken while another one's long prompts would take minutes; a third
    long one is told when to come back."""
    pytest.importorskip("starlette")
    from sterna.server.active_request import ActiveRequest
    from sterna.server.errors import ApiError
    from sterna.server.request_limits import RequestLimits
    from sterna.server.settings import Settings

    async def ask() -> None:
        engine = AsyncLLM(llm)  # without a loop of steps: what is queued stays
        bench = Bench(llm).learnt()
        bench.scheduler._wait_times._took_ms *= 50
        engine._engine_loop = SimpleNamespace(scheduler=bench.scheduler)  # type: ignore[assignment]
        submitted = list[Any]()
        monkeypatch.setattr(engine, "start", submitted.append)
        limits = RequestLimits(Settings(max_wait=60.0))
        model: Any = SimpleNamespace(name="x", clients=1, engine=engine)
        for n in (150, 200):
            bench.add(n, 1)
        short = [llm.requests.make([1, 2, 3], {})]
        ActiveRequest(limits, model, "", "x").submit([short])
        assert submitted == [short]
        long = [llm.requests.make([5] * min(250, llm.context), {})]
        with pytest.raises(ApiError) as caught:
            ActiveRequest(limits, model, "", "x").submit([long])
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        expected = 50 * 350 * TOKEN_MS / 1e3
        assert caught.value.retry_after == pytest.approx(expected, rel=0.4)

    asyncio.run(ask())


@pytest.mark.parametrize("of_batch", [False, True])
def test_whole_answers_of_a_server(llm: LLM, of_batch: bool) -> None:
    """A client's keeps the pace; one of a batch gives way."""
    pytest.importorskip("starlette")
    from sterna.server.active_request import ActiveRequest

    async def ask() -> bool:
        async with AsyncLLM(llm) as engine:
            model: Any = SimpleNamespace(name="x", clients=0, engine=engine)
            idle = asyncio.Event() if of_batch else None
            active = ActiveRequest(SimpleNamespace(), model, "", "x", idle_event=idle)
            stream = engine.submit("a", max_tokens=2)
            active._streams.append(stream)
            await active.result()
            return stream.requests[0].is_streamed

    assert asyncio.run(ask()) is not of_batch
