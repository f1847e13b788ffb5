"""Where all layers have windows, pages behind them go back to the pool, and no bit changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from helpers import assert_same_bits, cold
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule
from test_page_pool import Sequences

from sterna import LLM, loading
from sterna.engine import PAGE, Engine, PagePool, PrefixCache, Sequence
from sterna.engine.kv_cache.sequence import GONE, are_whole, without_flag
from sterna.engine.kv_cache.sliding_windows import PageShape
from sterna.evaluate import loglikelihood
from sterna.llm.conversation import Conversation

WINDOW = 70  # of the recipe, in both layers
PROMPT = np.random.default_rng(5).integers(0, 256, 500).tolist()


class WindowedSequences(Sequences):
    """The pool's machine, with windows: what the next position sees is there, and what marks need.

    `values` are those of all positions; what a sequence no longer reads may be gone.
    """

    _forgets = True
    shape = PageShape(0, 1, WINDOW)

    def _pool(self) -> PagePool:
        return PagePool(self.count, self._copy, shape=self.shape)

    def _write(self, sequence: Sequence, values: list[int], count: int) -> None:
        super()._write(sequence, values, count)
        self.pool.free_unseen(sequence)
        back = max(0, sequence.length - self.shape.back)
        assert self.pool.reachable(sequence, back) == back or count < self.shape.back
        first = max(0, back + 1 - WINDOW) // PAGE
        assert sequence.rewind_points or not are_whole(sequence.pages[:first]).any()

    def _needed(self, sequence: Sequence) -> int:
        return max(0, sequence.length + 1 - WINDOW)

    @invariant()
    def marks_can_be_reached(self) -> None:
        """As can the length itself."""
        for sequence, _ in getattr(self, "alive", []):
            points = (sequence.length, *sequence.rewind_points)
            assert all(self.pool.reachable(sequence, point) == point for point in points)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), keep=st.integers(1, 2))
    def snapshot(self, data: st.DataObject, keep: int) -> None:
        """A mark, to which it can come back, until it needs the pages itself."""
        sequence, _ = self._draw(data)
        assert self.pool.snapshot(sequence, keep)
        assert len(sequence.rewind_points) <= max(keep, 1)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cut_in_half(self, data: st.DataObject) -> None:
        """An interrupt leaves a shorter length, and the pages are still there, or gone."""
        sequence, values = self._draw(data)
        wanted = data.draw(st.integers(0, sequence.length))
        sequence.length = self.pool.reachable(sequence, wanted)
        sequence.rewind_points = tuple(m for m in sequence.rewind_points if m <= sequence.length)
        del values[sequence.length :]


class SplitSequences(WindowedSequences):
    """Where other layers see all positions: these read all of them, whatever is gone for windows.

    What is given to the system holds other values then.
    """

    shape = PageShape(2, 3, WINDOW, back=20, step=2 * PAGE)

    def _pool(self) -> PagePool:
        ids = self.shape.ids(self.count)
        assert ids == self.count * 5 // 2
        self.rest, self.memory = (np.zeros((ids, PAGE), np.int64) for _ in range(2))
        return PagePool(self.count, self._copy, shape=self.shape, ids=ids, release=self._release)

    def _copy(self, source: int, target: int) -> None:
        super()._copy(source, target)
        self.rest[target] = self.rest[source]

    def _release(self, first: int, last: int, windowed: bool) -> None:
        (self.memory if windowed else self.rest)[first : last + 1] = -7

    def _write(self, sequence: Sequence, values: list[int], count: int) -> None:
        begin = sequence.length
        super()._write(sequence, values, count)
        for position in range(begin, begin + count):
            page = without_flag(sequence.pages)[position // PAGE]
            self.rest[page, position % PAGE] = values[position]

    def _free(self, held: np.ndarray) -> int:
        whole = {int(p) for s, _ in self.alive for p in s.pages[are_whole(s.pages)]}
        room = self.count * 5 - 2 * int((held > 0).sum()) - 3 * len(whole)
        return min(room // 5, int((held == 0).sum()))

    @invariant()
    def layers_without_windows_read_everything(self) -> None:
        """Through the same pages."""
        for sequence, values in getattr(self, "alive", []):
            pages = without_flag(sequence.pages[: -(-len(values) // PAGE)])
            assert self.rest[pages].reshape(-1)[: len(values)].tolist() == values

    @invariant()
    def memory_is_within_its_bounds(self) -> None:
        """The pages that may take memory are never more than fit the budget."""
        if hasattr(self, "alive"):
            assert self.pool._resident.nbytes <= self.count * 5


TestWindowedSequences = WindowedSequences.TestCase
TestSplitSequences = SplitSequences.TestCase
TestWindowedSequences.settings = settings(max_examples=25, stateful_step_count=50)
TestSplitSequences.settings = TestWindowedSequences.settings


@pytest.fixture(scope="module")
def model(checkpoint: Callable[[str], Path]) -> loading.Model:
    return loading.load(checkpoint("mistral-window"), format="i8")


def of_pages(model: loading.Model, pages: int) -> Engine:
    """An engine with room for so many."""
    page_bytes = Engine(model, threads=1).kv_cache.bytes_per_position * PAGE
    return Engine(model, threads=2, kv_bytes=pages * page_bytes)


def held(sequence: Sequence) -> int:
    """Pages that it has."""
    return int((sequence.pages != GONE).sum())


def fed(engine: Engine, sequence: Sequence, tokens: list[int], chunk: int) -> np.ndarray:
    """The logits of all of them, float32 [n, vocab]."""
    rows = []
    for i in range(0, len(tokens), chunk):
        part = tokens[i : i + chunk]
        rows += engine.step([(sequence, part, len(part))])
    return np.concatenate(rows)


def test_a_sequence_longer_than_the_pool(model: loading.Model) -> None:
    """Four pages suffice for any number of positions, with the bits of a pool that has them all."""
    expected = Engine(model, threads=1).logits([PROMPT])[0]
    for chunk in (1, 17, 64):
        small, sequence = of_pages(model, 4), Sequence()
        assert_same_bits(fed(small, sequence, PROMPT, chunk), expected)
        assert held(sequence) == 3  # of the window, and of as much before it
        assert small.kv_cache.pool.free == 1
        assert len(sequence.pages) == 8
        small.kv_cache.release(sequence)
        assert small.kv_cache.pool.free == 4


def test_rewind(model: loading.Model) -> None:
    """As far as the pages are there; behind them from the begin, and always to a snapshot."""
    engine, expected = of_pages(model, 12), Engine(model, threads=1).logits([PROMPT])[0]
    assert engine.kv_cache.needs_snapshots
    s = Sequence()
    fed(engine, s, PROMPT[:300], 60)
    assert s.pages[:2].tolist() == [GONE] * 2  # 230 sees from 161 on, in the third page
    assert engine.kv_cache.rewind(s, 197) == 197
    assert_same_bits(fed(engine, s, PROMPT[197:206], 4), expected[197:206])
    assert engine.kv_cache.rewind(s, 196) == 0
    assert held(s) == 0
    assert_same_bits(fed(engine, s, PROMPT[:200], 50), expected[:200])
    assert engine.kv_cache.snapshot(s)
    fed(engine, s, PROMPT[200:], 50)
    assert engine.kv_cache.rewind(s, 330) == 256  # the nearest length whose windows are there
    assert engine.kv_cache.rewind(s, 201) == 201
    assert_same_bits(fed(engine, s, PROMPT[201:450], 50), expected[201:450])
    assert engine.kv_cache.rewind(s, 200) == 200
    assert_same_bits(fed(engine, s, PROMPT[200:210], 3), expected[200:210])


def test_forks(model: loading.Model) -> None:
    """Two sequences share what is there, go their own ways, and each gives back its own."""
    engine, s = of_pages(model, 12), Sequence()
    fed(engine, s, PROMPT[:300], 300)
    fork, early = engine.kv_cache.pool.fork(s, 290), engine.kv_cache.pool.fork(s, 100)
    assert (fork.length, early.length) == (290, 0)
    fresh = Engine(model, threads=1).logits([[*PROMPT[:290], *PROMPT[:150]], PROMPT])
    got = fed(engine, fork, PROMPT[:150], 25)
    assert_same_bits(got, fresh[0][290:])
    assert_same_bits(fed(engine, s, PROMPT[300:], 50), fresh[1][300:])
    assert engine.kv_cache.pool.free == 12 - held(s) - held(fork)


def test_a_rewind_that_was_interrupted(model: loading.Model) -> None:
    """To the begin, before the pages that are gone were forgotten: it grows again from there."""
    engine, s = of_pages(model, 8), Sequence()
    fed(engine, s, PROMPT[:300], 60)
    s.length = 0
    assert_same_bits(
        fed(engine, s, PROMPT[:200], 30), Engine(model, threads=1).logits([PROMPT[:200]])[0]
    )


def test_resume(model: loading.Model) -> None:
    """From where two prompts part, if there is a snapshot before; else all is computed again."""
    engine, first = of_pages(model, 12), Sequence()
    cache = PrefixCache(engine.kv_cache.pool, 12)
    fed(engine, first, PROMPT[:250], 125)
    engine.kv_cache.snapshot(first)
    fed(engine, first, PROMPT[250:400], 50)
    cache.insert(np.array(PROMPT, np.int32), first, final=True)
    engine.kv_cache.release(first)
    for same in (320, 250, 100):
        prompt = [*PROMPT[:same], 7, 8, 9]
        found, seen = cache.match(np.array(prompt, np.int32))
        s = found or Sequence()
        assert (s.length, seen) == (same if same >= 250 else 0, same)
        got = fed(engine, s, prompt[s.length :], 40)
        expected = Engine(model, threads=1).logits([prompt])[0]
        assert_same_bits(got, expected[len(prompt) - len(got) :])
        engine.kv_cache.release(s)


def test_turns_of_a_conversation(checkpoint: Callable[[str], Path]) -> None:
    """Each is as a fresh run, and computes what is new."""
    llm = LLM(checkpoint("mistral-window"), threads=2)
    options = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    with Conversation(llm, system="Be brief") as chat:
        before = 0
        for text in ("Hello", "And then?" * 12, "x" * 100, "Why?"):
            messages = [*chat.messages, {"role": "user", "content": text}]
            done, fresh = chat.ask(text, **options), cold(llm).chat(messages, **options)
            assert done.tokens == fresh.tokens
            assert done.stats.n_cached >= before
            before = done.stats.n_prompt - 12  # what opens an answer may be written otherwise
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def test_scores(model: loading.Model) -> None:
    """Requests that begin alike come back to where they part."""
    engine = of_pages(model, 12)
    requests = [
        loglikelihood.ScoringRequest([*PROMPT[:200], *PROMPT[250 + i : 256 + 2 * i]], 3 + i)
        for i in range(4)
    ]
    together = loglikelihood.score(engine, [requests])[0]
    assert together == [loglikelihood.score(engine, [[one]])[0][0] for one in requests]
    assert engine.kv_cache.pool.free == 12


def test_repeated(model: loading.Model) -> None:
    """A depth is made of the pages that are there."""
    engine, s = of_pages(model, 12), Sequence()
    fed(engine, s, PROMPT[: 4 * PAGE], PAGE)
    deep = engine.kv_cache.repeated(s, 6 * PAGE)
    engine.step([(deep, [1], 1)])
    assert held(deep) == 4
