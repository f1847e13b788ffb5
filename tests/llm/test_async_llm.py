"""`AsyncLLM`: answers as of `LLM.generate`, whoever else asks; cancelled, late, unread, drained."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import time
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest
from waits import HANGS_S

from sterna import LLM, AsyncLLM, Completion, Piece
from sterna.engine import Request
from sterna.errors import NonFiniteError, RequestError

PROMPTS = ("def f(", "class A:", "import ", "x = 1\n" * 30)
OPTIONS: dict[str, Any] = {"max_tokens": 12, "temperature": 1.5, "ignore_eos": True}
LONG: dict[str, Any] = {"max_tokens": 400, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1)


def run(llm: LLM, work: Callable[[AsyncLLM], Coroutine[Any, Any, None]]) -> None:
    """A coroutine with an engine that is closed afterwards, and leaves nothing behind."""

    async def main() -> None:
        async with AsyncLLM(llm) as engine:
            with anyio.fail_after(HANGS_S):
                await work(engine)

    before = threading.active_count()
    asyncio.run(main())
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count
    assert not llm.engine_loop.listeners
    assert [t for t in threading.enumerate() if t.name == "sterna-engine"] == []
    assert threading.active_count() <= before + 1


def facts(done: Completion) -> tuple[Any, ...]:
    return done.text, done.tokens, done.finish_reason, done.logprobs


def test_many_as_alone(llm: LLM) -> None:
    """Streams, choices, and a thread that uses the LLM meanwhile."""
    alone = [llm.generate(p, seed=i, logprobs=2, **OPTIONS) for i, p in enumerate(PROMPTS * 5)]
    choices = llm.choices(PROMPTS[0], 3, seed=7, **OPTIONS)

    async def work(engine: AsyncLLM) -> None:
        tickets = [
            engine.submit(prompt, seed=i, logprobs=2, key=str(i % 3), priority=i % 2, **OPTIONS)
            for i, prompt in enumerate(PROMPTS * 5)
        ]
        several = engine.submit(PROMPTS[0], n=3, seed=7, **OPTIONS)
        thread = asyncio.to_thread(llm.generate, PROMPTS[1], seed=1, logprobs=2, **OPTIONS)
        results = await asyncio.gather(*(ticket.result() for ticket in tickets), thread)
        assert [facts(result[0]) for result in results[:-1]] == [facts(done) for done in alone]
        assert facts(results[-1]) == facts(alone[1])
        texts = ["", "", ""]
        async for piece in several:
            texts[piece.index] += piece.text
        assert texts == [done.text for done in choices] == [c.text for c in several.completions]
        assert engine.load().running == engine.load().waiting == 0

    run(llm, work)


def test_scores(llm: LLM) -> None:
    """Log-probabilities of prompts while others generate: those of all logits, cached or not."""
    texts = [text * 20 for text in PROMPTS[:3]]
    answers = [llm.generate(text, seed=3, **OPTIONS) for text in texts]  # and in the cache

    async def work(engine: AsyncLLM) -> None:
        tickets = [engine.submit(text, seed=3, **OPTIONS) for text in texts]
        scores = await asyncio.gather(*(engine.score(text, 3) for text in texts))
        results = await asyncio.gather(*(ticket.result() for ticket in tickets))
        assert [facts(result[0]) for result in results] == [facts(done) for done in answers]
        for text, found in zip(texts, scores, strict=True):
            ids = llm.tokenizer.encode(text)
            assert found == llm.prompt_logprobs(ids, 3)
            assert found[0] is None
            assert [one.token for one in found[1:] if one] == ids[1:]
            expected = llm.logprobs(ids).tolist()
            assert [one.logprob for one in found[1:] if one] == expected
            rows = llm.logits(ids)
            for row, one in zip(rows, found[1:], strict=False):
                assert one is not None
                assert [t for t, _ in one.top] == np.argsort(-row, kind="stable")[:3].tolist()
                assert all(p == one.logprob for t, p in one.top if t == one.token)
        assert [one and one.top for one in await engine.score("ab")][1:] == [()] * (
            len(llm.tokenizer.encode("ab")) - 1
        )
        with pytest.raises(RequestError, match="top"):
            await engine.score("ab", 1000)

    run(llm, work)
    assert llm.prompt_logprobs([5]) == [None]


def present(engine: AsyncLLM) -> int:
    """Requests that run or wait, of one moment: a step may admit some between two looks."""
    load = engine.load()
    return load.running + load.waiting


def test_cancelled_and_forgotten(llm: LLM) -> None:
    """At most a piece follows; what is forgotten is cancelled; pages come back."""

    async def work(engine: AsyncLLM) -> None:
        ticket, pieces = engine.submit(PROMPTS[0], **LONG), list[Piece]()
        async for piece in ticket:
            pieces.append(piece)
            if len(pieces) == 3:
                ticket.cancel()
                ticket.cancel()
        assert len(pieces) <= 4
        assert ticket.completions[0].finish_reason == "cancelled"
        waiting = asyncio.create_task(engine.submit(PROMPTS[0], **LONG).result())
        await asyncio.sleep(0)
        forgotten = engine.submit(PROMPTS[1], **LONG)
        assert present(engine) == 2
        del forgotten
        assert present(engine) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        del waiting
        while engine.load().running:
            await asyncio.sleep(0.01)

    run(llm, work)


def test_who_is_not_read_waits(llm: LLM) -> None:
    """It is computed a little ahead, and then as it is read."""
    expected = llm.generate(PROMPTS[0], **LONG).tokens

    async def work(engine: AsyncLLM) -> None:
        ticket = engine.submit(PROMPTS[0], **LONG)
        request = ticket.requests[0]
        while not request.paused:
            await asyncio.sleep(0.01)
        computed = request.sequence.length
        other = engine.submit(PROMPTS[1], **OPTIONS)
        await other.result()
        assert request.sequence.length == computed
        assert (await ticket.result())[0].tokens == expected

    run(llm, work)


def test_deadlines(llm: LLM) -> None:
    async def work(engine: AsyncLLM) -> None:
        ticket = engine.submit(PROMPTS[0], deadline_s=0.0, **OPTIONS)
        (done,) = await ticket.result()
        assert (done.finish_reason, done.tokens) == ("deadline", [])

    run(llm, work)


def test_drained_and_closed(llm: LLM) -> None:
    """Queued requests end; new ones are refused."""

    async def work(engine: AsyncLLM) -> None:
        ticket = engine.submit(PROMPTS[0], **OPTIONS)
        result = asyncio.create_task(ticket.result())
        await engine.drain()
        assert (await result)[0].finish_reason == "length"
        with pytest.raises(RequestError, match="draining"):
            engine.submit(PROMPTS[0])
        await engine.close()
        with pytest.raises(RequestError, match="closed"):
            engine.submit(PROMPTS[0])

    run(llm, work)


def test_errors(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong arguments fail at once; readers get the errors of the engine; faults end all waits."""

    async def work(engine: AsyncLLM) -> None:
        wrong: list[dict[str, Any]] = [
            {"n": 0}, {"key": 3}, {"priority": "x"}, {"deadline_s": -1.0}, {"deadline_s": "x"},
            {"salt": None}, {"chat": 1}, {"top_p": 2.0}, {"unknown": 1},
        ]  # fmt: skip
        for options in wrong:
            with pytest.raises(RequestError, match=next(iter(options))):
                engine.submit(PROMPTS[0], **options)
        with pytest.raises(RequestError, match="empty"):
            engine.submit("")

        def take(request: Request, drawn: Any) -> None:
            raise NonFiniteError("logits: must be finite")

        with monkeypatch.context() as patch:
            patch.setattr(Request, "take", take)
            with pytest.raises(NonFiniteError, match="finite"):
                await engine.submit(PROMPTS[0], n=2, **OPTIONS).result()
            stream = engine.submit(PROMPTS[0], **OPTIONS)
            with contextlib.suppress(NonFiniteError):
                await stream.result()
            failed = weakref.ref(stream)
            del stream
            while failed() is not None:  # the error's traceback keeps nothing alive
                await asyncio.sleep(0.01)
                gc.collect()

        def fail() -> None:
            raise ZeroDivisionError("a fault of ours")

        with monkeypatch.context() as patch:
            patch.setattr(llm.engine_loop.scheduler, "step", fail)
            with pytest.raises(ZeroDivisionError):
                await engine.submit(PROMPTS[0], **OPTIONS).result()
        assert (await engine.submit(PROMPTS[0], **OPTIONS).result())[0].tokens

    run(llm, work)
    with pytest.raises(RequestError, match="llm: must be an LLM"):
        AsyncLLM("nano")  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="step_ms"):
        AsyncLLM(llm, step_ms=0)


def test_closed_between_two_steps(llm: LLM) -> None:
    """The thread ends, though it forgets the wake-up of `close` as it begins a step."""
    engine = AsyncLLM(llm)

    class Forgotten(threading.Event):
        def clear(self) -> None:
            engine._closed = "closed"
            self.set()
            super().clear()

    async def work() -> None:
        engine._wake = Forgotten()
        engine._attach()
        assert engine._thread is not None
        await asyncio.to_thread(engine._thread.join, HANGS_S)
        ended = not engine._thread.is_alive()
        engine._wake.set()
        await engine.close()
        assert ended

    asyncio.run(work())


def test_idle_takes_no_time(llm: LLM) -> None:
    """No step is tried while nobody asks."""
    steps = [0]
    step = llm.engine_loop.scheduler.step

    def counted() -> Any:
        steps[0] += 1
        return step()

    async def work(engine: AsyncLLM) -> None:
        await engine.submit(PROMPTS[0], **OPTIONS).result()
        await asyncio.sleep(0.05)
        before = steps[0]
        time.sleep(0.05)
        await asyncio.sleep(0.1)
        assert steps[0] <= before + 1  # one may have begun when the answer ended

    llm.engine_loop.scheduler.step = counted
    try:
        run(llm, work)
    finally:
        llm.engine_loop.scheduler.step = step
