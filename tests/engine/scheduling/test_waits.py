"""How busy a scheduler is, and the predicted waits; the tests have a clock of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from scheduling import BASE_MS, TOKEN_MS, Bench

from sterna import LLM
from sterna.engine import PrefixCache
from sterna.engine.kv_cache.sequence import pages_of


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1)


def test_load(llm: LLM) -> None:
    bench = Bench(llm, max_running=2).learnt()
    assert bench.scheduler.load.predicted_s == 0
    assert bench.scheduler.load.idle
    for queued in (0, 0, 1, 2):  # a request that has a place waits for nobody
        assert bench.scheduler.load.queue(1) == queued
        bench.add(640, 5)
    load = bench.scheduler.load
    assert not load.idle
    assert (load.running, load.waiting, load.waiting_tokens) == (0, 4, 4 * 640)
    assert load.predicted_s == pytest.approx(4 * 640 * TOKEN_MS / 1e3, rel=0.3)
    bench.step()
    load = bench.scheduler.load
    assert load.running >= 1
    assert load.pages_used > 0
    assert load.pages == 10_000
    bench.until(lambda: all(r.finished for r in bench.requests))
    assert pages_of(bench.scheduler.load.pages_used) == 0


@pytest.mark.parametrize("streams", [0, 1, 4])
def test_a_short_prompt_goes_between_the_chunks_of_a_long_one(llm: LLM, streams: int) -> None:
    """Its next step or the one after, however long the other one has waited; so does a question of
    which the cache has all but the end. And the long one keeps half of the time."""
    bench = Bench(llm).learnt()
    bench.scheduler.cache = PrefixCache(bench.engine.kv_cache.pool, 1000)
    question = [7, *range(150), *range(150), *range(150), *range(108)]
    known = bench.add(question, 2)
    bench.until(lambda: known.finished)
    running = [bench.add(5, 10_000) for _ in range(streams)]
    bench.until(lambda: all(r.left == 1 for r in running))
    began = bench.clock.now
    long = bench.add(7000, 1)
    bench.step()
    asked = 0
    while long.left > 600:
        for prompt in ([*question, 3 + asked % 90], 12):
            short = bench.add(prompt, 3)
            assert bench.scheduler.load.waiting_tokens <= long.left + 12
            assert bench.until(lambda short=short: short.n_drawn > 0) <= 2
            asked += 1
        bench.until(lambda n=long.left: long.left < n)
    assert asked > 20
    alone = (7000 - 600) * TOKEN_MS / 1e3
    took, busy = bench.clock.now - began, (BASE_MS + TOKEN_MS * streams) / (130 if streams else 500)
    assert took < 3 * alone / (1 - busy)


def test_waits_are_learnt_from_steps_as_they_are(llm: LLM) -> None:
    """A machine gets six times as slow, and fast again: predictions soon say so."""
    bench = Bench(llm).learnt()
    stream = bench.add(5, 10_000)
    bench.until(lambda: stream.left == 1)
    for slow in (1.0, 6.0, 1.0):
        bench.engine.noise = lambda slow=slow: slow
        long = bench.add(4000, 1)
        ends = list[float]()
        for _ in range(25):  # one prediction in eight comes from a step without a prompt
            bench.step()
            ends.append(bench.clock.now + bench.scheduler.load.predicted_s)
        began = bench.clock.now
        bench.until(lambda long=long: long.finished)
        assert median(ends[10:]) - began == pytest.approx(bench.clock.now - began, rel=0.4)


def test_the_wait_of_a_new_prompt(llm: LLM) -> None:
    """Of what comes before it: a short prompt does not wait for a long one, cached or not."""
    bench = Bench(llm).learnt()
    bench.scheduler.cache = PrefixCache(bench.engine.kv_cache.pool, 1000)
    short, long = (np.array([9] * n, np.int32) for n in (12, 8000))
    conversation = [8, *range(150)] * 20
    before = bench.add(conversation, 2)
    assert bench.scheduler.wait_s(short) == 0
    bench.until(lambda: before.finished)
    first, second = bench.add(2800, 1), bench.add(2600, 1)
    bench.step()
    later = np.array([*conversation, 3], np.int32)
    assert bench.scheduler.wait_s(short) == bench.scheduler.wait_s(later) == 0
    bench.add(8, 1)
    assert 0 < bench.scheduler.wait_s(short) < 0.3
    both = bench.scheduler.wait_s(long)
    assert both == pytest.approx((first.left + second.left) * TOKEN_MS / 1e3, rel=0.3)
    assert bench.scheduler.wait_s(later, "of another") > 5
    assert bench.scheduler.load.predicted_s >= both
