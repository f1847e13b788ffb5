"""Where some layers have windows and others see all positions, pages lose the part of the former
behind these, and no bit changes: whatever is rewound, shared, cached, preempted or on disk.
"""

from __future__ import annotations

import contextlib
import gc
import random
from dataclasses import replace
from pathlib import Path

import checkpoint_factory as factory
import numpy as np
import pytest
from checkpoint_factory import RECIPES
from helpers import assert_same_bits, cold
from test_interrupts import POOL, interrupted
from test_sliding_windows import PROMPT, fed

from sterna import LLM, loading
from sterna.engine import PAGE, Engine, PrefixCache, PrefixDiskCache, Sequence
from sterna.engine.kv_cache import manager
from sterna.engine.kv_cache.sequence import GONE, are_whole, without_flag
from sterna.engine.kv_cache.sliding_windows import PageShape
from sterna.errors import RequestError

#: Instructions between two interrupts that are tried, of some 20,000.
STRIDE = 211
MIXED = ("qwen2-windows", "gemma2", "gemma3", "gemma4", "gpt_oss")


def model_of(tmp_path: Path, name: str, window: int, seed: int = 1) -> loading.Model:
    recipe = RECIPES[name]
    config = {**recipe.config, "sliding_window": window}
    recipe = replace(recipe, config=config, max_positions=1024, seed=seed)
    return loading.load(factory.write(tmp_path / f"{name}-{window}", recipe), format="i8")


def without_windows(model: loading.Model, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine that keeps everything."""
    with monkeypatch.context() as patch:
        patch.setattr(manager, "rewind_margin", lambda window: 1 << 20)
        engine = Engine(model, threads=1, context=1024)
    assert not engine.kv_cache.needs_snapshots
    return engine


def spoil(engine: Engine) -> int:
    """Fills what nobody has with bytes that no layer may read; how many parts behind windows."""
    pool = engine.kv_cache.pool
    held, behind = pool._with_cache(pool._counted()), 0
    for page in range(pool.ids):
        if held.parts[page]:
            continue
        rest = engine.kv_cache.read_page(page, whole=False)
        engine.kv_cache.write_page(page, np.full(engine.kv_cache.page_bytes, 0x7E, np.uint8))
        if held.pages[page]:
            engine.kv_cache.write_page(page, rest)
            behind += 1
    return behind


@pytest.mark.parametrize("name", MIXED)
def test_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a random window, over steps, rewinds, forks, marks, hits of the cache and of the disk."""
    choose = random.Random(name)
    model = model_of(tmp_path, name, choose.randrange(3, 100))
    plain = without_windows(model, monkeypatch)
    size = 14 * plain.kv_cache.page_bytes
    engine = Engine(model, threads=2, context=1024, kv_bytes=size)
    assert engine.kv_cache.pool.ids > engine.kv_cache.pool.count == 14
    store = PrefixDiskCache(tmp_path / "disk", engine.kv_cache, engine.identity, 1 << 30)
    cache = PrefixCache(engine.kv_cache.pool, 14, store)
    alive: list[tuple[Sequence, list[int]]] = []
    behind = found = back = 0
    for _ in range(90):
        if not alive or choose.random() < 0.25:
            tokens = PROMPT[: choose.choice((64, 100, 300, 450))] + [choose.randrange(90)] * 3
            store.flush()  # else what is found would be a matter of time
            if choose.random() < 0.3:
                cache.clear()
            sequence = cache.match(np.array(tokens, np.int32))[0] or Sequence()
            found += sequence.length
            alive.append((sequence, tokens[: sequence.length]))
        sequence, tokens = choose.choice(alive)
        what = choose.random()
        if what < 0.15:
            length = choose.randrange(len(tokens) + 1)
            kept = engine.kv_cache.rewind(sequence, length)
            back += kept > 0
            assert kept <= length
            del tokens[kept:]
        elif what < 0.25:
            fork = engine.kv_cache.pool.fork(sequence, choose.randrange(len(tokens) + 1))
            alive.append((fork, tokens[: fork.length]))
            del fork
        elif what < 0.35:
            engine.kv_cache.snapshot(sequence, choose.randrange(1, 3))
        elif what < 0.5:
            final = choose.random() < 0.5
            cache.insert(np.array(tokens, np.int32), sequence, final=final)
            if final:
                alive = [one for one in alive if one[0] is not sequence]
        else:
            # Along the same text for the most part, so that something is found.
            count = choose.choice((1, 5, 64, 130))
            new = PROMPT[len(tokens) : len(tokens) + count] or [choose.randrange(90)]
            if choose.random() < 0.1:
                new = [choose.randrange(90) for _ in new]
            try:
                got = engine.step([(sequence, new, 1)])[0]
            except RequestError:  # no pages
                del sequence
                alive = alive[len(alive) // 2 + 1 :]
                continue
            tokens += new
            assert_same_bits(got[-1], plain.logits([tokens], chunk=512)[0][-1])
        del sequence
        behind += spoil(engine)
        if len(alive) > 5:
            del alive[choose.randrange(len(alive))]
    assert behind > 20
    assert found > 300
    assert back > 0
    alive.clear()
    assert engine.kv_cache.pool.free == 14


def test_a_long_sequence_in_a_small_pool(tmp_path: Path) -> None:
    """It takes the bytes of all positions in some layers, and of a few in the others."""
    model = model_of(tmp_path, "gemma3", 40)
    whole = Engine(model, threads=1)
    shape = whole.kv_cache.pool.shape
    assert shape.rest_bytes * 3 == shape.windowed_bytes  # one layer of four sees everything
    assert shape.page_bytes == whole.kv_cache.page_bytes == whole.kv_cache.bytes_per_position * PAGE
    small, sequence = Engine(model, threads=1, kv_bytes=5 * whole.kv_cache.page_bytes), Sequence()
    expected = whole.logits([PROMPT])[0]
    assert_same_bits(fed(small, sequence, PROMPT, PAGE), expected)
    assert len(sequence.pages) == 8
    assert are_whole(sequence.pages).tolist() == [False] * 6 + [True] * 2
    assert sorted(set(without_flag(sequence.pages).tolist())) == list(range(8))
    assert small.kv_cache.pool.free == (5 * 4 - 8 - 2 * 3) // 4
    assert small.kv_cache.rewind(sequence, 480) == 480
    assert_same_bits(fed(small, sequence, PROMPT[480:], 7), expected[480:])
    assert small.kv_cache.rewind(sequence, 300) == 0
    assert small.kv_cache.pool.free == 5


def test_answers_in_a_small_pool(tmp_path: Path) -> None:
    """Prompts that a pool of whole pages would refuse are admitted, side by side."""
    recipe = RECIPES["gemma3"]
    config = {**recipe.config, "sliding_window": 40}
    folder = factory.write(tmp_path, replace(recipe, config=config, max_positions=2048))
    wide = LLM(folder, threads=1)
    small = LLM(folder, threads=1, kv_bytes=20 * wide.engine.kv_cache.page_bytes)
    prompts, options = [PROMPT * 3, PROMPT[5:] * 3], {"max_tokens": 9, "ignore_eos": True}
    answers = [small.generate(prompt, **options) for prompt in prompts]
    answers += small.generate(prompts, **options)
    expected = [cold(wide).generate(prompt, **options).tokens for prompt in prompts]
    assert [answer.tokens for answer in answers] == expected * 2
    assert small.engine.kv_cache.pool.free == 20


def test_windows_that_hold_the_context_are_none(tmp_path: Path) -> None:
    """Nothing is ever behind them, so a sequence can go back to any length."""
    model = model_of(tmp_path, "gemma3", 40)
    engine = Engine(model, threads=1, context=79)
    assert engine.kv_cache.pool.shape == PageShape(engine.kv_cache.page_bytes)
    assert not engine.kv_cache.needs_snapshots
    assert Engine(model, threads=1, context=80).kv_cache.needs_snapshots


def test_each_instruction_of_giving_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt anywhere loses no page and no part, gives none twice, and changes no bit."""
    model = model_of(tmp_path, "gemma3", 20)
    page_bytes = Engine(model, threads=1).kv_cache.page_bytes
    engine = Engine(model, threads=1, kv_bytes=7 * page_bytes)
    pool, shape = engine.kv_cache.pool, engine.kv_cache.pool.shape
    monkeypatch.setattr(pool, "lock", contextlib.nullcontext())
    cache = PrefixCache(pool, 3)
    expected = Engine(model, threads=1).logits([PROMPT[:460]])[0]

    def run(sequence: Sequence) -> None:
        for begin in range(sequence.length, 330, 110):
            engine.step([(sequence, PROMPT[begin : begin + 110], 0)])
        fork = engine.kv_cache.pool.fork(sequence, 325)
        engine.kv_cache.snapshot(sequence)
        cache.insert(np.array(PROMPT, np.int32), sequence, final=True)
        engine.step([(fork, PROMPT[325:400], 0)])
        engine.kv_cache.rewind(sequence, 300)
        engine.step([(sequence, PROMPT[sequence.length : 440], 0)])

    at, more = 0, True
    while more:
        cache.clear()
        sequence = Sequence()
        more = interrupted(lambda s=sequence: run(s), at, POOL)
        gc.collect()  # an interrupt's frames may be a cycle, which has sequences until then
        cache.clear()
        pages = without_flag(sequence.pages[sequence.pages != GONE])
        assert np.flatnonzero(pool.ref_counts()).tolist() == sorted(pages.tolist())
        used = len(pages) * shape.rest_bytes
        used += int(are_whole(sequence.pages).sum()) * shape.windowed_bytes
        assert pool.free == min((7 * page_bytes - used) // page_bytes, pool.ids - len(pages))
        spoil(engine)
        length = engine.kv_cache.rewind(sequence, sequence.length)
        rows = fed(engine, sequence, PROMPT[length:460], 90)
        assert_same_bits(rows, expected[length:])
        spoil(engine)
        assert pool._resident.nbytes <= 7 * page_bytes
        del sequence
        at += STRIDE
    assert at > 2000
