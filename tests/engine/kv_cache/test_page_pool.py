"""The pool of pages: whatever is taken, shared, cut and forgotten, each page is free or held by
those that read it, and nobody writes what another reads.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sterna import LLM, _native, loading
from sterna.engine import PAGE, Engine, PagePool, Sequence
from sterna.engine.kv_cache import manager
from sterna.engine.kv_cache.sequence import GONE, are_whole, without_flag
from sterna.errors import RequestError

COUNT = 9


def there(pages: np.ndarray) -> np.ndarray:
    """The pages that were not freed, or only in part."""
    return without_flag(pages[pages != GONE])


class Sequences(RuleBasedStateMachine):
    """Sequences, the values that each should read, and a memory that is made of pages."""

    @initialize()
    def start(self) -> None:
        """An empty pool."""
        self.count = COUNT
        self.memory = np.zeros((COUNT, PAGE), np.int64)
        self.alive: list[tuple[Sequence, list[int]]] = []
        self.pool = self._pool()
        self.written = 0

    def _pool(self) -> PagePool:
        return PagePool(COUNT, self._copy)

    #: Whether it may have to go further back than asked.
    _forgets = False

    def _free(self, held: np.ndarray) -> int:
        """Whole pages that nobody has."""
        return int((held == 0).sum())

    def _needed(self, sequence: Sequence) -> int:
        """The first position that it must be able to read."""
        return 0

    def _copy(self, source: int, target: int) -> None:
        assert target not in {int(p) for s, _ in self.alive for p in s.pages}
        assert source != GONE
        self.memory[target] = self.memory[source]

    def _write(self, sequence: Sequence, values: list[int], count: int) -> None:
        for position in range(sequence.length, sequence.length + count):
            self.written += 1
            self.memory[sequence.pages[position // PAGE], position % PAGE] = self.written
            values.append(self.written)
        sequence.length += count

    def _draw(self, data: st.DataObject) -> tuple[Sequence, list[int]]:
        # Hypothesis keeps what it has drawn, so it draws a place and not a sequence.
        return self.alive[data.draw(st.integers(0, len(self.alive) - 1))]

    @rule()
    def begin(self) -> None:
        """A sequence without pages."""
        self.alive.append((Sequence(), []))

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def grow(self, data: st.DataObject) -> None:
        """Some sequences at once; where the pages do not suffice, none."""
        places = st.lists(st.integers(0, len(self.alive) - 1), unique=True, min_size=1)
        some = [self.alive[i] for i in data.draw(places)]
        counts = [data.draw(st.integers(0, 2 * PAGE)) for _ in some]
        before = [(s.pages, s.length) for s, _ in some]
        try:
            self.pool.reserve([(s, n) for (s, _), n in zip(some, counts, strict=True)])
        except RequestError:
            for (pages, length), (sequence, _) in zip(before, some, strict=True):
                assert (len(pages), length) == (len(sequence.pages), sequence.length)
                other = pages != sequence.pages
                assert not other.any() or (self._forgets and not sequence.rewind_points)
                assert not are_whole(sequence.pages[other]).any()  # marks gave way, for nothing
            return
        for (sequence, values), count in zip(some, counts, strict=True):
            self._write(sequence, values, count)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        """Takes no page, however long."""
        source, values = self._draw(data)
        free, length = self.pool.free, data.draw(st.integers(0, source.length))
        fork = self.pool.fork(source, length)
        assert fork.length == self.pool.reachable(source, length)
        self.alive.append((fork, values[: fork.length]))
        assert self.pool.free == free

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Forgets the last positions."""
        sequence, values = self._draw(data)
        length = data.draw(st.integers(0, sequence.length))
        reachable = self.pool.reachable(sequence, length)
        assert self.pool.truncate(sequence, length) == reachable <= length
        assert reachable == length or self._forgets
        del values[reachable:]

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        """A sequence is forgotten without a word to the pool."""
        self.alive.remove(self._draw(data))

    @invariant()
    def everyone_reads_what_it_wrote(self) -> None:
        """A sequence reads its values through its own pages."""
        for sequence, values in getattr(self, "alive", []):
            assert len(sequence.pages) >= -(-len(values) // PAGE)
            first = self._needed(sequence)
            pages = sequence.pages[first // PAGE : -(-len(values) // PAGE)]
            assert are_whole(pages).all()
            read = self.memory[pages].reshape(-1)
            assert read[first % PAGE :][: len(values) - first].tolist() == values[first:]

    @invariant()
    def pages_are_free_or_held(self) -> None:
        """Pages that a sequence says it has alone, it has alone."""
        if not hasattr(self, "alive"):
            return
        held = np.zeros(self.pool.ids, np.int64)
        for sequence, _ in self.alive:
            held[there(sequence.pages)] += 1
        assert self.pool.ref_counts().tolist() == held.tolist()
        assert self.pool.free == self._free(held)
        for sequence, _ in self.alive:
            assert (held[there(sequence.pages[sequence.shared :])] == 1).all()

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cut_in_half(self, data: st.DataObject) -> None:
        """An interrupt leaves a shorter length, and the pages are still there."""
        sequence, values = self._draw(data)
        sequence.length = data.draw(st.integers(0, sequence.length))
        del values[sequence.length :]


TestSequences = Sequences.TestCase
TestSequences.settings = settings(max_examples=50, stateful_step_count=50)


def copies(count: int) -> tuple[PagePool, list[tuple[int, int]]]:
    """A pool, and the copies that it makes."""
    copied: list[tuple[int, int]] = []
    return PagePool(count, lambda source, target: copied.append((source, target))), copied


def test_only_a_partial_page_is_copied() -> None:
    """Whoever writes first copies a page; the last one that has it writes in place."""
    pool, copied = copies(8)
    first = Sequence()
    pool.reserve([(first, 3 * PAGE)])
    first.length = 2 * PAGE + 5
    whole, partial = pool.fork(first, 2 * PAGE), pool.fork(first, first.length)
    assert pool.ref_counts().tolist() == [3, 3, 2, 0, 0, 0, 0, 0]
    pool.reserve([(whole, 1)])
    assert (whole.pages.tolist(), copied) == ([0, 1, 3], [])
    pool.reserve([(partial, 1), (first, 1)])
    assert copied == [(2, 4)]
    assert (first.pages.tolist(), partial.pages.tolist()) == ([0, 1, 2], [0, 1, 4])
    pool.truncate(whole, PAGE + 1)
    pool.truncate(partial, 0)
    pool.reserve([(whole, 0)])
    assert len(copied) == 1
    pool.reserve([(whole, 2 * PAGE)])
    assert copied[1:] == [(1, 3)]
    assert whole.pages.tolist() == [0, 3, 4, 5]


def test_a_cut_that_was_interrupted() -> None:
    """Pages behind its length are still shared, and are not written when it grows again."""
    pool, copied = copies(8)
    first = Sequence()
    pool.reserve([(first, 3 * PAGE)])
    first.length = 3 * PAGE
    fork = pool.fork(first, 3 * PAGE)
    first.length = 10
    pool.reserve([(first, 1)])
    assert copied == [(0, 3)]
    assert not set(first.pages.tolist()) & set(fork.pages.tolist())


def test_shared_positions_answer_as_computed_ones(checkpoint: Callable[[str], Path]) -> None:
    """A fork in the middle of a page, and its source, go on with the bits of fresh sequences."""
    engine = Engine(loading.load(checkpoint("bitnet-multiply")), threads=2)
    start, ends = [i % 250 for i in range(PAGE + 9)], ([7, 8], [9])
    source = Sequence()
    engine.step([(source, start, 0)])
    fork = engine.kv_cache.pool.fork(source, len(start) - 4)
    rows = engine.step([(source, ends[0], 1), (fork, ends[1], 1)])
    fresh = engine.logits([[*start, *ends[0]], [*start[:-4], *ends[1]]])
    for got, expected in zip(rows, fresh, strict=True):
        assert got[-1].tobytes() == expected[-1].tobytes()
    logits = engine.step([(source, [1], 1)])[0]
    assert logits[0].tobytes() == engine.logits([[*start, *ends[0], 1]])[0][-1].tobytes()


def test_the_budget(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes make pages; without them one context, and more where the memory has room."""
    model = loading.load(checkpoint("bitnet-multiply"))
    page = Engine(model, threads=1).kv_cache.bytes_per_position * PAGE
    assert Engine(model, threads=1, kv_bytes=5 * page + page // 2).kv_cache.pool.count == 5
    with pytest.raises(RequestError, match=f"kv_bytes: must be a whole number in {page}"):
        Engine(model, threads=1, kv_bytes=page - 1)
    small = Engine(model, threads=1, context=2 * PAGE, kv_bytes=page)
    with pytest.raises(RequestError, match=r"1 are missing; .*kv_bytes"):
        small.step([(Sequence(), [1] * (PAGE + 1), 0)])
    llm = LLM(checkpoint("bitnet-multiply"), threads=1, kv_bytes=3 * page)
    assert llm.engine.kv_cache.pool.count == 3
    most = manager.MOST_PAGES
    for available, expected in ((0, (2,)), (400 * page, (100, 16, 2)), (1 << 60, (most, 16, 2))):
        monkeypatch.setattr(manager, "available_bytes", lambda n=available: n)
        assert manager.page_counts(2 * PAGE, page, None) == expected
    assert Engine(model, threads=1, context=2 * PAGE).kv_cache.pool.count == most


def test_a_system_that_refuses_address_space(
    checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets the fewer pages; a budget is taken at its word."""
    make, model = _native.KvCache, loading.load(checkpoint("bitnet-multiply"))

    def grudging(heads: list[tuple[int, int]], pages: int, *rest: Any) -> object:
        if pages > 8:
            raise MemoryError
        return make(heads, pages, *rest)

    monkeypatch.setattr(_native, "KvCache", grudging)
    assert Engine(model, threads=1, context=PAGE).kv_cache.pool.count == 8
    for options in ({"context": 10 * PAGE}, {"kv_bytes": 1 << 30}):
        with pytest.raises(RequestError, match=r"address space for .* kv_bytes"):
            Engine(model, threads=1, **options)


def test_what_a_cycle_holds_comes_back() -> None:
    """At the latest with the collector."""
    pool, _ = copies(4)
    sequence = Sequence()
    pool.reserve([(sequence, PAGE)])
    cycle: list[object] = [sequence]
    cycle.append(cycle)
    del sequence, cycle
    gc.collect()
    assert pool.free == 4
