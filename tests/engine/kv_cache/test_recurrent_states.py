"""States of recurrent layers: snapshots, forks, interrupts, budgets, turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import assert_same_bits, cold, failure
from test_interrupts import MODULES, POOL, forget, interrupted
from test_qwen3_5 import PROMPT, engine, tokens_of

from sterna import LLM, Conversation, loading
from sterna.engine import PAGE, Engine, PrefixCache, Sequence
from sterna.engine.engine import StepInput
from sterna.engine.kv_cache.page_pool import PagesMissing
from sterna.errors import RequestError
from sterna.evaluate import loglikelihood


@pytest.fixture(scope="module", params=["qwen3_5", "mamba2", "mamba"])
def hybrid(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> loading.Model:
    """A model that keeps states, keys and values; and one that keeps states alone."""
    return loading.load(checkpoint(request.param), format="i8")


@pytest.fixture
def small(hybrid: loading.Model) -> Engine:
    """Room for four sequences of three pages, or more states and fewer pages; or five states."""
    of = engine(hybrid)
    state = of.kv_cache.pool.state_pages
    pages = 4 * (3 + state) + (0 if of.kv_cache.kv_heads else state)
    return engine(hybrid, kv_bytes=of.kv_cache.page_bytes * pages)


def fresh(e: Engine, tokens: list[int]) -> np.ndarray:
    return tokens_of(e, Sequence(), tokens)


def test_states_count_as_pages(small: Engine) -> None:
    """Each sequence takes pages and a state; a released or forgotten one frees both."""
    pool, most = small.kv_cache.pool, small.kv_cache.pool.count
    assert small.kv_cache.state_bytes > 0
    assert pool.state_pages * small.kv_cache.page_bytes >= small.kv_cache.state_bytes
    alive = []
    while pool.free >= 1 + pool.state_pages:
        alive.append(Sequence())
        small.step([(alive[-1], [1], 0)])
        assert pool.free == most - len(alive) * (1 + pool.state_pages)
    refused = Sequence()
    failure(lambda: small.step([(refused, [1], 0)]), RequestError, "pages", "missing")
    assert (refused.state, len(refused.pages), refused.length) == (None, 0, 0)
    small.kv_cache.release(alive.pop())
    small.step([(refused, [1], 0)])
    small.kv_cache.release(refused)  # the error knows it, and may live on
    del alive
    assert pool.free == most


def test_rewind_goes_to_the_nearest_snapshot(small: Engine) -> None:
    """Or to nothing; and what follows has the bits of a sequence that never went further."""
    s = Sequence()
    for start, end in ((0, 20), (20, 50), (50, 90)):
        small.prefill(s, PROMPT[start:end])
        assert small.kv_cache.snapshot(s, keep=2)
    assert [state.position for state in s.snapshots] == [50, 90]
    assert small.kv_cache.rewind(s, 90) == 90  # where it is
    small.prefill(s, PROMPT[90:100])
    assert small.kv_cache.rewind(s, 89) == s.length == 50
    assert [state.position for state in s.snapshots] == [50]
    other = PROMPT[100:140]
    assert_same_bits(tokens_of(small, s, other), fresh(small, PROMPT[:50] + other))
    assert small.kv_cache.rewind(s, 50) == 50  # a snapshot serves again
    assert_same_bits(tokens_of(small, s, other), fresh(small, PROMPT[:50] + other))
    assert small.kv_cache.rewind(s, 49) == s.length == 0
    assert s.state is None
    assert_same_bits(tokens_of(small, s, other), fresh(small, other))


def test_snapshots_need_room(small: Engine) -> None:
    """Without, there is none, and the sequence goes on."""
    s = Sequence()
    small.prefill(s, PROMPT[:30])
    others = [Sequence()]
    while small.kv_cache.pool.free >= small.kv_cache.pool.state_pages:
        if others[-1].length == 2 * PAGE:
            others.append(Sequence())
        small.step([(others[-1], [1] * PAGE, 0)])
    assert not small.kv_cache.snapshot(s)
    assert small.kv_cache.snapshot(Sequence())  # of nothing, nothing is kept
    assert_same_bits(tokens_of(small, s, [5]), fresh_after(small, others, [*PROMPT[:30], 5]))


def fresh_after(e: Engine, others: list[Sequence], tokens: list[int]) -> np.ndarray:
    """As `fresh`, once the others have made room."""
    for other in others:
        e.kv_cache.release(other)
    return fresh(e, tokens)


def test_forks(small: Engine) -> None:
    """Two sequences share pages and snapshots and go their own ways, as each would alone."""
    s = Sequence()
    small.prefill(s, PROMPT[:70])
    small.kv_cache.snapshot(s)
    small.prefill(s, PROMPT[70:80])
    at_end, earlier, none = (small.kv_cache.pool.fork(s, n) for n in (80, 75, 69))
    assert (at_end.length, earlier.length, none.length) == (80, 70, 0)
    assert earlier.snapshots == s.snapshots
    assert earlier.state is None  # until it is written
    ways = {id(s): [1, 2], id(at_end): [3, 4, 5], id(earlier): [6] * 9}
    inputs = [(one, ways[id(one)], 1) for one in (s, at_end, earlier)]
    outputs = [rows[-1].copy() for rows in small.step(inputs)]
    for one, logits, length in zip((s, at_end, earlier), outputs, (80, 80, 70), strict=True):
        assert_same_bits(logits, fresh(small, PROMPT[:length] + ways[id(one)]))
    assert len({id(one.state) for one in (s, at_end, earlier)}) == 3


def test_a_state_behind_another_length_is_refused(small: Engine) -> None:
    """As an interrupt between a step and its noting leaves it; rewinding makes it good."""
    s = Sequence()
    small.prefill(s, PROMPT[:10])
    small.kv_cache.snapshot(s)
    small.prefill(s, PROMPT[10:20])
    s.length = 19  # the step came to its end and nobody knows
    failure(lambda: small.step([(s, [1], 1)]), RequestError, "19 positions", "rewind")
    assert small.kv_cache.rewind(s, 19) == 10
    assert_same_bits(tokens_of(small, s, [1]), fresh(small, [*PROMPT[:10], 1]))


def drafted(e: Engine, s: Sequence, tokens: list[int], drafts: int) -> np.ndarray:
    """Logits of a step with so many drafts at its end, and of the token before them."""
    (output,) = e.run([StepInput(s, tokens, drafts + 1, drafts=drafts)])
    return output.logits.copy()


def test_drafts_are_taken_back(small: Engine) -> None:
    """To before the first of them, or none is; what follows has the bits as if none had been."""
    s, known = Sequence(), PROMPT[:40]
    small.prefill(s, known[:-1])
    rows = drafted(small, s, [known[-1], *PROMPT[40:45]], 5)
    assert_same_bits(rows[0], fresh(small, known))
    assert_same_bits(rows[-1], fresh(small, PROMPT[:45]))
    first, second = s.state, s.draft_state
    s.roll_back(45)  # all were right
    assert (s.length, s.state, s.draft_state) == (45, second, first)
    assert_same_bits(
        drafted(small, s, [1, 2, 3, 4], 2)[-1], fresh(small, [*PROMPT[:45], 1, 2, 3, 4])
    )
    s.roll_back(48)  # one was right
    assert (s.length, s.state, s.draft_state) == (47, second, first)
    assert first is not None
    assert first.position == -1  # or a later step could take it for one of what is there then
    for more in ([3, 7], [8], [9]):
        small.prefill(s, more)
    assert small.kv_cache.rewind(s, 49) == 0
    small.prefill(s, PROMPT[:9])
    drafted(small, s, [1, 2, 3], 2)
    assert small.kv_cache.rewind(s, 11) == 10  # as after an interrupt
    assert_same_bits(tokens_of(small, s, [5]), fresh(small, [*PROMPT[:9], 1, 5]))


def fill(e: Engine, others: list[Sequence]) -> None:
    """Gives them pages until there are none."""
    while True:
        if others[-1].length == 2 * PAGE:
            others.append(Sequence())
        e.step([(others[-1], [1] * PAGE, 0)])


def test_states_of_drafts_give_way(small: Engine) -> None:
    """They are free to be had, and have no room where pages are missing."""
    s, others = Sequence(), [Sequence()]
    small.prefill(s, PROMPT[:9])
    free = small.kv_cache.pool.free
    assert small.kv_cache.may_draft(s)
    assert (small.kv_cache.pool.free, s.draft_state is not None) == (free, True)
    with pytest.raises(PagesMissing):
        fill(small, others)
    assert not small.kv_cache.may_draft(others[0])
    failure(lambda: drafted(small, others[0], [1, 2], 1), RequestError, "pages")
    assert small.kv_cache.pool.drop_draft_states()
    assert not small.kv_cache.pool.drop_draft_states()
    small.step([(others[-1], [1], 0)])


def test_a_failed_step_leaves_no_state(hybrid: loading.Model, small: Engine) -> None:
    """A state that is not finite is an error, and is never used as a good one."""
    s = Sequence()
    small.prefill(s, PROMPT[:10])
    program = small._program

    class Failing:
        """Runs the step, then fails as one does whose activations are not finite."""

        def run(self, cache: Any, tokens: Any, spans: Any, *rest: Any) -> Any:
            _, _, _, _, states, *_ = rest  # isa, threads, deciding and draws come before
            program.run(cache, tokens, spans, *rest)
            assert states[0].position == 11
            raise FloatingPointError("layer 1")

    small._program = Failing()  # type: ignore[assignment]
    with pytest.raises(Exception, match="layer 1"):
        small.step([(s, [1], 1)])
    small._program = program
    failure(lambda: small.step([(s, [1], 1)]), RequestError, "10 positions")
    assert small.kv_cache.rewind(s, 10) == 0


def test_resume(small: Engine) -> None:
    """From a snapshot up to the first token that differs; the rest is computed again."""
    cache, first = PrefixCache(small.kv_cache.pool, small.kv_cache.pool.count), Sequence()
    small.prefill(first, PROMPT[:60])
    small.kv_cache.snapshot(first)
    small.prefill(first, PROMPT[60:70])
    cache.insert(np.array(PROMPT, np.int32), first, final=True)
    small.kv_cache.release(first)
    prompt = [*PROMPT[:65], 1, 2, 3]
    s, seen = cache.match(np.array(prompt, np.int32))
    assert s is not None
    assert (s.length, seen) == (60, 65)
    assert_same_bits(tokens_of(small, s, prompt[60:]), fresh(small, prompt))
    s, seen = cache.match(np.array([*PROMPT[:70], 1], np.int32))
    assert s is not None
    assert (s.length, seen) == (70, 70)  # with the state that the first one had at its end
    small.kv_cache.pool.cache = None  # others share the engine


def test_repeated(small: Engine) -> None:
    """A depth is there at once, and a step from there runs."""
    s = Sequence()
    small.prefill(s, PROMPT[:PAGE])
    deep = small.kv_cache.repeated(s, 2 * PAGE)
    assert deep.state is not None
    assert deep.state.position == 2 * PAGE
    small.step([(deep, [1], 1)])


def test_scoring_returns_to_where_requests_part(small: Engine) -> None:
    """A group's scores are those of its requests one by one, with room for snapshots or not."""
    requests = [
        loglikelihood.ScoringRequest([*PROMPT[:40], *PROMPT[50 + i : 56 + 2 * i]], 3 + i)
        for i in range(4)
    ]
    alone = [loglikelihood.score(small, [[one]])[0][0] for one in requests]
    assert loglikelihood.score(small, [requests])[0] == alone
    assert loglikelihood.score(small, [requests[:2], requests[2:]]) == [alone[:2], alone[2:]]
    held, one = [Sequence()], 1 + small.kv_cache.pool.state_pages
    while (
        small.kv_cache.pool.free >= one + small.kv_cache.pool.state_pages
    ):  # a snapshot has no room then
        if small.kv_cache.pool.free >= 2 * one:
            held.append(Sequence())
        small.step([(held[-1], [1] * PAGE, 0)])
    assert loglikelihood.score(small, [requests])[0] == alone


# ------------------------------------------------------------------------------ conversations


@pytest.fixture(scope="module")
def llm(checkpoint: Callable[[str], Path]) -> LLM:
    options: dict[str, Any] = {"format": "i8", "threads": 1, "context": 6 * PAGE}
    kv_cache = LLM(checkpoint("qwen3_5"), **options).engine.kv_cache
    pages = 40 + 12 * kv_cache.pool.state_pages
    return LLM(checkpoint("qwen3_5"), **options, kv_bytes=pages * kv_cache.page_bytes)


OPTIONS: dict[str, Any] = {"max_tokens": 4, "ignore_eos": True, "temperature": 0}


def test_conversations_have_the_bits_of_fresh_ones(llm: LLM) -> None:
    """Turns that go on, and such as take an answer back, which needs the snapshot."""
    with Conversation(llm) as talk:
        for text in ("Hello there", "And now?", "Well"):
            done = talk.ask(text, **OPTIONS)
            assert done.tokens == cold(llm).chat(talk.messages[:-1], **OPTIONS).tokens
        assert talk.last.stats.n_cached > 0
        before = talk.last.stats
        talk.undo()
        again = talk.ask("Well", **OPTIONS)  # the same prompt, from the end of the user's turn
        assert 0 < again.stats.n_cached < before.n_prompt
        assert again.tokens == cold(llm).chat(talk.messages[:-1], **OPTIONS).tokens
        # A template that writes answers otherwise than they came: as where reasoning is left out.
        talk.messages = [*talk.messages[:-1], {"role": "assistant", "content": "No."}]
        other = talk.ask("Why?", **OPTIONS)
        assert other.stats.n_cached >= again.stats.n_cached
        assert other.tokens == cold(llm).chat(talk.messages[:-1], **OPTIONS).tokens
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def test_an_interrupted_conversation_goes_on_as_if_nothing_had_been(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a turn ends, the next one has the bits of a fresh one: no state is half changed."""
    monkeypatch.setattr(llm.engine.kv_cache.pool, "lock", contextlib.nullcontext())
    first, second = "Hello there", "x" * 40
    with Conversation(llm) as talk:
        expected = [talk.ask(text, **OPTIONS).tokens for text in (first, second)]
    at, done = 0, False
    while not done:
        talk = Conversation(llm)
        forget(llm)
        assert talk.ask(first, **OPTIONS).tokens == expected[0]
        before = talk.messages
        done = not interrupted(lambda talk=talk: talk.ask(second, **OPTIONS), at, MODULES)
        talk.messages = before
        assert talk.ask(second, **OPTIONS).tokens == expected[1], at
        del talk  # not closed: what is forgotten is free
        at += 61
    assert at > 1000
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def assert_sound_with_states(e: Engine, alive: Sequence) -> None:
    """The free pages are those that the sequence does not have, and all can be taken."""
    mine = {id(s) for s in (alive.state, *alive.snapshots) if s and s is not alive.draft_state}
    pages, states = e.kv_cache.pool.state_pages, len(mine)
    free = e.kv_cache.pool.count - len(alive.pages) - states * pages
    assert e.kv_cache.pool.free == free
    e.kv_cache.pool.drop_draft_states()
    others = [Sequence() for _ in range(free // (1 + pages))]
    e.step([(other, [1], 0) for other in others])
    assert e.kv_cache.pool.free == free % (1 + pages)


def test_each_instruction_of_steps_and_rewinds(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page is lost, and every state that a sequence may still use is of its tokens."""
    e = llm.engine
    monkeypatch.setattr(e.kv_cache.pool, "lock", contextlib.nullcontext())
    history = PROMPT[: 2 * PAGE]
    expected = {n: fresh(e, history[:n]) for n in (5, 6, PAGE + 9)}

    def run(s: Sequence) -> None:
        e.step([(s, history[:5], 1)])
        e.kv_cache.snapshot(s)
        e.step([(s, history[5 : PAGE + 9], 0)])
        fork = e.kv_cache.pool.fork(s, s.length)
        e.step([(s, [7], 0), (fork, [8], 0)])
        e.kv_cache.rewind(s, 40)
        e.step([(s, history[5:6], 1)])
        e.kv_cache.snapshot(s)
        drafted(e, s, [*history[6:8], 1, 2], 2)
        s.roll_back(8)
        drafted(e, s, [*history[8:10]], 1)
        s.roll_back(10)

    at, more = 0, True
    while more:
        s = Sequence()
        more = interrupted(lambda s=s: run(s), at, POOL)
        assert_sound_with_states(e, s)
        for n in sorted(expected):
            if n <= s.length or s.length == 0:
                continue
            # What is left of it after an interrupt goes on to the very logits.
            left = e.kv_cache.rewind(s, min(s.length, 5))
            assert_same_bits(tokens_of(e, s, history[left:n]), expected[n])
        at += 11 if at > 200 else 1
    assert at > 300
