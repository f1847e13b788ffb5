"""Prompts that begin alike are computed once, also where they come at the same time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scheduling import TOKEN_MS, Bench

from sterna import LLM
from sterna.engine import PAGE


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    return LLM(checkpoint("bitnet-multiply"), threads=1)


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
    assert bench.engine.kv_cache.pool.free == 10_000


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
    assert bench.engine.kv_cache.pool.free == 10_000


def test_what_is_little_is_not_waited_for(llm: LLM) -> None:
    """A step more reads the weights once more, which takes as long as some tokens."""
    bench = Bench(llm).learnt()
    requests = [bench.add([1, 2, 3, 4, 5, i, *[i] * 9]) for i in range(6, 9)]
    bench.step()
    assert all(r.n_drawn == 1 for r in requests)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize(
    "name",
    [
        "bitnet-multiply",
        "qwen3_5",
        "lfm2",
        "falcon-h1",
        "mamba2",
        "recurrent-gemma",
        "minicpm3",
        "mistral-window",
    ],
)
def test_choices_share_a_prompt(checkpoint: Callable[[str], Path], name: str, cached: bool) -> None:
    """It is computed once; answers are those of requests that name the choice."""
    llm = LLM(checkpoint(name), threads=1, prefix_cache=cached)
    prompt = [i * 7 % 200 for i in range(5 * PAGE + 20)]
    options: dict[str, Any] = {"max_tokens": 9, "temperature": 1.5, "seed": 3, "logprobs": 2}
    choices = llm.choices(prompt, 5, **options)
    assert [c.stats.n_cached for c in choices] == [0] + [len(prompt) - 1] * 4
    alone = [llm.generate(prompt, **options, choice=i) for i in range(5)]
    assert [(c.tokens, c.logprobs) for c in choices] == [(c.tokens, c.logprobs) for c in alone]
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count
    # One whose leader ends before its prompt is computed goes on by itself.
    first, second = llm.requests.make_several(prompt[::-1], 2, options)
    llm.engine_loop.add(second)
    llm.engine_loop.add(first)
    llm.engine_loop.cancel(first)
    list(llm.engine_loop.pieces(second))
    assert second.completion.tokens == llm.generate(prompt[::-1], **options, choice=1).tokens


def test_what_several_begin_with_counts_once(llm: LLM) -> None:
    """In what is to be computed, so in how long a new request will wait; and among the pages."""
    bench = Bench(llm, pages=5 + 5).learnt()
    prompt = [3, *range(150), *range(150), *range(19)]  # five pages
    first = bench.add(prompt, 20)
    alike = [bench.add([*prompt, i], 20) for i in range(4)]
    load = bench.scheduler.load
    assert load.waiting_tokens == 320 + 4 * 1
    assert load.predicted_s < 2 * 320 * TOKEN_MS / 1e3
    bench.until(lambda: all(r.finished for r in (first, *alike)))
    assert [r.completion.stats.n_cached for r in alike] == [320] * 4
    assert max(map(len, bench.engine.steps)) == 5  # side by side
    assert bench.scheduler.preemptions == 0
    assert bench.engine.kv_cache.pool.free == 10
