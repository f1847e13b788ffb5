"""The cache of prefixes: what it finds is what was computed for these tokens, whatever was kept,
shared, cut and forgotten before; and all its pages are free to be had.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers import cold

from sterna import LLM
from sterna.engine import PAGE, Engine, PagePool, PrefixCache, Sequence
from sterna.engine.kv_cache.sequence import GONE, pages_of
from sterna.errors import RequestError

COUNT = 12


class Memory:
    """A pool whose pages remember, for each position, all tokens up to it."""

    def __init__(self, most: int = COUNT) -> None:
        self.cells: list[list[Any]] = [[None] * PAGE for _ in range(COUNT)]
        self.pool = PagePool(COUNT, self._copy)
        self.cache = PrefixCache(self.pool, most)

    def _copy(self, source: int, target: int) -> None:
        self.cells[target] = list(self.cells[source])

    def write(self, sequence: Sequence, tokens: list[int]) -> None:
        """Computes the rest of these tokens."""
        begin = sequence.length
        self.pool.reserve([(sequence, len(tokens) - begin)])
        held = self.pool._with_cache(self.pool._counted()).pages
        for i in range(begin, len(tokens)):
            page = int(sequence.pages[i // PAGE])
            assert held[page] == 1, "a page that others have is written"
            self.cells[page][i % PAGE] = tuple(tokens[: i + 1])
        sequence.length = len(tokens)

    def check(self, sequence: Sequence, tokens: list[int]) -> None:
        """The sequence reads the values that were computed for these tokens."""
        for i in range(sequence.length):
            cell = self.cells[int(sequence.pages[i // PAGE])][i % PAGE]
            assert cell == tuple(tokens[: i + 1])

    def check_all(self, alive: list[tuple[Sequence, list[int]]]) -> None:
        for sequence, tokens in alive:
            self.check(sequence, tokens)
        kept = []
        for _, tokens, page in self.cache:
            last = (len(tokens) - 1) // PAGE * PAGE
            for i in range(last, len(tokens)):
                assert self.cells[page][i - last] == tuple(tokens[: i + 1].tolist())
            kept.append(page)
        assert len(kept) == len(set(kept)) == self.cache.pages <= self.cache.most
        held = {int(page) for sequence, _ in alive for page in sequence.pages}
        assert self.pool.free == COUNT - len(held)


@pytest.mark.parametrize("most", [COUNT, 5])
def test_random_histories(most: int) -> None:
    """Prompts of few pieces, so that much is found, in a small pool, where much is lost."""
    found = 0
    for seed in range(4):
        choose, memory = random.Random(seed), Memory(most)
        pieces = [[choose.randrange(3) for _ in range(n)] for n in (1, 30, 64, 70, 128)]
        alive: list[tuple[Sequence, list[int]]] = []
        for _ in range(40):
            tokens = [t for _ in range(choose.randrange(1, 5)) for t in choose.choice(pieces)]
            tokens, salt = tokens[: 4 * PAGE], choose.choice(["", "", "a"])
            sequence, seen = memory.cache.match(np.array(tokens, np.int32), salt)
            sequence = sequence or Sequence()
            assert sequence.length == seen < len(tokens)
            memory.check(sequence, tokens)
            found += sequence.length
            try:
                memory.write(sequence, tokens)
            except RequestError:  # those that are alive have the pages
                alive.clear()
                continue
            kept = choose.random()
            if kept < 0.8:
                memory.cache.insert(np.array(tokens, np.int32), sequence, salt, final=kept < 0.5)
            alive.append((sequence, tokens))
            if choose.random() < 0.6:
                alive.pop(choose.randrange(len(alive)))
            del sequence
            if choose.random() < 0.3:
                memory.check_all(alive)
    assert found > 1_500


def test_the_longest_beginning_is_found() -> None:
    """Of all that were kept with the same salt: to the token, in the middle of a page as well."""
    memory, choose = Memory(), random.Random(1)
    kept: list[list[int]] = []
    for _ in range(4):
        tokens = [choose.randrange(2) for _ in range(choose.randrange(1, 3 * PAGE))]
        sequence = Sequence()
        memory.write(sequence, tokens)
        memory.cache.insert(np.array(tokens, np.int32), sequence, final=True)
        kept.append(tokens)
    for _ in range(200):
        source = choose.choice(kept)
        at = choose.randrange(len(source))
        tokens = [*source[:at], *(choose.randrange(2) for _ in range(20))]
        expected = max(
            next((i for i, (a, b) in enumerate(zip(k, tokens[:-1], strict=False)) if a != b),
                 min(len(k), len(tokens) - 1)) for k in kept
        )  # fmt: skip
        sequence, same = memory.cache.match(np.array(tokens, np.int32))
        assert same == expected == (sequence.length if sequence else 0)
        assert memory.cache.match(np.array(tokens, np.int32), "other") == (None, 0)


def test_the_longest_unused_goes_first() -> None:
    memory = Memory()
    for first in range(4):
        sequence = Sequence()
        memory.write(sequence, [first] * (2 * PAGE))
        memory.cache.insert(np.array([first] * (2 * PAGE), np.int32), sequence)
    del sequence
    memory.cache.match(np.array([0] * (2 * PAGE + 1), np.int32))
    running = Sequence()
    memory.write(running, [9] * (7 * PAGE))
    lengths = []
    for first in range(4):
        sequence, _ = memory.cache.match(np.array([first] * (2 * PAGE + 1), np.int32))
        lengths.append(sequence.length // PAGE if sequence else 0)
    assert lengths == [2, 0, 1, 2]  # leaves before what is above them
    with pytest.raises(RequestError, match="one at most"):
        PrefixCache(memory.pool, 3)


def test_a_part_of_a_page_is_not_taken_for_the_whole() -> None:
    """Where the whole one is gone, as behind windows."""
    memory, tokens = Memory(), np.arange(70, dtype=np.int32)
    long, short = Sequence(), Sequence()
    memory.write(long, tokens.tolist())
    long.pages = np.where(np.arange(2) == 0, GONE, long.pages)
    memory.cache.insert(tokens, long, final=True)
    memory.write(short, tokens[:32].tolist())
    memory.cache.insert(tokens[:32], short, final=True)
    sequence, _ = memory.cache.match(tokens)
    assert sequence is None
    whole = Sequence()
    memory.write(whole, tokens[:64].tolist())
    memory.cache.insert(tokens[:64], whole, final=True)
    sequence, _ = memory.cache.match(tokens)
    assert sequence is not None
    assert sequence.length == 69
    memory.check(sequence, tokens.tolist())


def test_a_full_pool_that_the_cache_shares() -> None:
    """The last page of a sequence that has all others is not copied to be written."""
    memory, tokens = Memory(), [1] * (COUNT * PAGE - 9)
    sequence = Sequence()
    memory.write(sequence, tokens)
    memory.cache.insert(np.array(tokens, np.int32), sequence, final=True)
    memory.write(sequence, [*tokens, 2, 3])
    memory.check_all([(sequence, [*tokens, 2, 3])])


@pytest.mark.parametrize(
    "name",
    [
        "bitnet-multiply",
        "qwen3_5",
        "lfm2",
        "falcon-h1",
        "mamba2",
        "jamba",
        "recurrent-gemma",
        "zamba2",
        "minicpm3",
        "deepseek-v3.2",
        "gemma3",
        "mistral-window",
    ],
)
def test_answers_with_a_warm_cache(checkpoint: Callable[[str], Path], name: str) -> None:
    """Of prompts that begin like others, and of these again: tokens and log-probabilities."""
    llm = LLM(checkpoint(name), threads=1)
    fresh, choose = cold(llm), random.Random(2)
    base = [choose.randrange(200) for _ in range(5 * PAGE)]
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 5, "logprobs": 2}
    cached = 0
    for same in (5 * PAGE, 5 * PAGE, 130, 64, 130, 100, 319, 3, 130):
        prompt = [*base[:same], *(choose.randrange(200) for _ in range(choose.randrange(1, 90)))]
        for _ in range(2):
            warm, expected = llm.generate(prompt, **options), fresh.generate(prompt, **options)
            assert (warm.tokens, warm.logprobs) == (expected.tokens, expected.logprobs)
            assert expected.stats.n_cached == 0
            cached += warm.stats.n_cached
            prompt = [*prompt, *warm.tokens, 7]  # as a next turn
    assert cached > 1500
    assert llm.engine.kv_cache.pool.free == llm.engine.kv_cache.pool.count


def test_a_cache_of_an_llm(checkpoint: Callable[[str], Path]) -> None:
    """None where it is not wanted; as large as kv_bytes where that is given."""
    plain = LLM(checkpoint("bitnet-multiply"), threads=1, prefix_cache=False)
    assert plain.engine_loop.scheduler.cache is None
    assert plain.generate("Hello" * 30).stats.n_cached == 0
    assert plain.generate("Hello" * 30).stats.n_cached == 0
    page = plain.engine.kv_cache.bytes_per_position * PAGE
    small = LLM(checkpoint("bitnet-multiply"), threads=1, kv_bytes=5 * page, context=4 * PAGE)
    cache = small.engine_loop.scheduler.cache
    assert cache is not None
    assert cache.most == 5
    for i in range(12):
        small.generate([i] * (i * 15 + 1), max_tokens=5)
        assert cache.pages <= 5
        assert small.engine_loop.scheduler.load.cached_pages == cache.pages
        assert small.engine.kv_cache.pool.free == 5
    assert Engine(plain.engine.model, kv_bytes=7 * page).kv_cache.prefix_cache_pages == 7
    assert pages_of(65) == 2
