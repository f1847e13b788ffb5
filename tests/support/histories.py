"""Random histories of a scheduler: requests of all kinds come, are cancelled, wait, lose their
pages and end, with caches in all states. Each answer is that of the request alone.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from helpers import cold

from sterna import LLM
from sterna.engine import (
    PAGE,
    Engine,
    EngineLoop,
    PrefixCache,
    PrefixDiskCache,
    Request,
    Scheduler,
    StepLimits,
)
from sterna.engine.engine import StepOutput
from sterna.engine.kv_cache.sequence import BARE, GONE, without_flag

#: llama.cpp's samplers, of which mirostat has a state.
SAMPLERS: dict[str, Any] = {
    "dry_multiplier": 0.8, "dry_allowed_length": 1, "top_n_sigma": 2.5, "typical_p": 0.95,
    "xtc_probability": 0.5, "xtc_threshold": 0.02, "dynatemp_range": 0.5,
}  # fmt: skip

PENALTY: dict[str, Any] = {"frequency_penalty": 0.5}

CONSTRAINTS = ("[a-z ]{3,40}", '"(a|b|c)*"', "(yes|no|perhaps)")


@dataclass
class Asked:
    """A request, and what it was made of."""

    request: Request
    tokens: list[int]
    options: dict[str, Any]
    ended: int = 0  # events since it was cancelled


class Clock:
    """Seconds that pass at random, so that chunks are of all sizes."""

    def __init__(self, choose: random.Random) -> None:
        self.now, self._choose = 0.0, choose

    def __call__(self) -> float:
        self.now += self._choose.choice((1e-4, 1e-3, 1e-2, 0.1))
        return self.now


class Histories:
    """Histories of one model, on an engine of few pages."""

    def __init__(self, llm: LLM, pages: int, disk: Path | None = None) -> None:
        nbytes = llm.engine.kv_cache.page_bytes * pages
        self.llm = cold(llm)
        self.engine = Engine(
            llm.engine.model, threads=llm.engine.threads, isa=llm.engine.isa, context=6 * PAGE,
            kv_bytes=nbytes,
        )  # fmt: skip
        self.small = cold(llm, self.engine)
        self.disk = disk
        self.known: dict[str, tuple[Any, ...]] = {}
        self.answers = self.preempted = self.cached = self.accepted = 0

    def alone(self, tokens: list[int], options: dict[str, Any]) -> tuple[Any, ...]:
        """The answer of a request by itself, without drafts or a cache."""
        key = repr((tokens, {k: str(v) for k, v in options.items()}))
        if key not in self.known:
            plain = {k: v for k, v in options.items() if k != "prediction"}
            (request,) = self.llm.requests.make_several(tokens, 1, plain)
            request._speculation = None
            list(EngineLoop(Scheduler(self.llm.engine)).pieces(request))
            self.known[key] = _facts(request)
        return self.known[key]

    def run(self, seed: int) -> None:
        """One history."""
        choose = random.Random(seed)
        warm = choose.choice(("none", "cold", "disk" if self.disk else "cold"))
        self.engine.kv_cache.pool.cache = None
        self.engine.background_masks = choose.random() < 0.5
        cache = None
        if warm != "none":
            store = None
            if warm == "disk":
                engine = self.engine
                store = PrefixDiskCache(self.disk, engine.kv_cache, engine.identity, 1 << 30)
            cache = PrefixCache(self.engine.kv_cache.pool, choose.choice((3, 1000)), store)
        limits = StepLimits(
            choose.choice((1.0, 30.0, 1e4)),
            choose.choice((1.0, 100.0, float("inf"))),
            choose.choice((1, 3, 64)),
        )
        noisy: Any = _Noisy(self.engine, choose)
        scheduler = Scheduler(noisy, limits, prefix_cache=cache, clock=Clock(choose))
        here, done = list[Asked](), list[Asked]()
        left = choose.randrange(1, 10)
        while left or here:
            if left and choose.random() < 0.7:
                here += self._add(scheduler, choose)
                left -= 1
            events = scheduler.step()
            for asked in here:
                if asked.request.finished:
                    asked.ended += sum(event.request is asked.request for event in events)
                    assert asked.ended <= 1
            for asked in here:
                if choose.random() < 0.8:  # others are read later
                    for _ in asked.request.pieces():
                        pass
                if choose.random() < 0.02:
                    scheduler.cancel(asked.request)
                    for _ in asked.request.pieces():
                        pass
            self._check(cache, here)
            done += [asked for asked in here if asked.request.finished]
            for asked in here:
                if asked.request.finished:  # as its reader does
                    scheduler.cancel(asked.request)
            here = [asked for asked in here if not asked.request.finished]
        for asked in done:
            self._compare(asked)
        self.preempted += scheduler.preemptions
        assert scheduler.step() == []
        assert self.engine.kv_cache.pool.free == self.engine.kv_cache.pool.count
        if cache is not None:
            if cache._disk is not None:
                cache._disk.flush()
                if choose.random() < 0.05 and self.disk is not None:
                    shutil.rmtree(self.disk)
            self._check_page(cache, choose)
            cache.clear()

    def _add(self, scheduler: Scheduler, choose: random.Random) -> list[Asked]:
        """A request, or several choices of one."""
        step = choose.choice((1, 1, 7, 11))  # some begin alike
        base = [t * step % 90 for t in range(5 * PAGE)]
        tokens = base[: choose.choice((1, 5, 63, 64, 65, 130, 200))]
        tokens = tokens + [choose.randrange(90) for _ in range(choose.choice((1, 1, 3, 70)))]
        options: dict[str, Any] = {
            "max_tokens": choose.choice((1, 4, 20, 70)),
            "temperature": choose.choice((0.0, 1.0, 2.0)),
            "seed": choose.randrange(3),
            "logprobs": choose.choice((0, 0, 2)),
            "repetition_penalty": choose.choice((1.0, 1.0, 1.3)),
            **choose.choice(({}, PENALTY, {**PENALTY, "repeat_last_n": 6})),
            "stop": choose.choice(((), ("e",), ("zzz",))),
            "ignore_eos": choose.random() < 0.5,
            **choose.choice(({}, {}, SAMPLERS, {"mirostat": 1}, {**SAMPLERS, "mirostat": 2})),
        }
        if choose.random() < 0.15:
            options["constraint"] = self.small.constraints.regex(choose.choice(CONSTRAINTS))
        if choose.random() < 0.3:  # its answer, with a few tokens that are others
            answer = self.alone(tokens, {**options, "choice": 0})[1]
            wrong = choose.randrange(2, 20)
            other = choose.choice((7, *self.llm.tokenizer.eos_ids))
            options["prediction"] = [t if i % wrong else other for i, t in enumerate([*answer, 7])]
        n = choose.choice((1, 1, 1, 3))
        requests = self.small.requests.make_several(
            tokens, n, options, key=choose.choice("ab"), priority=choose.randrange(-1, 2),
            salt=choose.choice(("", "", "s")),
            deadline_s=choose.choice((None, None, None, 0.5)),
        )  # fmt: skip
        for request in requests:
            scheduler.add(request)
        return [Asked(r, tokens, {**options, "choice": i}) for i, r in enumerate(requests)]

    def _compare(self, asked: Asked) -> None:
        """Its answer is that of the request alone, or its beginning where it was ended before."""
        found = _facts(asked.request)
        text, tokens, logprobs, reason = self.alone(asked.tokens, asked.options)
        if found[3] in ("cancelled", "deadline"):
            assert text.startswith(found[0])
            assert tokens[: len(found[1])] == found[1]
            assert logprobs[: len(found[2])] == found[2]
        else:
            assert found == (text, tokens, logprobs, reason)
            self.answers += 1
        self.cached += asked.request.completion.stats.n_cached
        self.accepted += asked.request.completion.stats.n_accepted

    def _check(self, cache: PrefixCache | None, here: list[Asked]) -> None:
        """Each page is held by those that use it, and by nobody else."""
        pool = self.engine.kv_cache.pool
        expected = np.zeros(pool.ids, np.int64)
        for asked in here:
            pages = asked.request.sequence.pages
            expected[without_flag(pages[pages != GONE])] += 1
        assert pool.ref_counts().tolist() == expected.tolist()
        if cache is not None:
            kept = [page for _, _, page in cache if page != GONE]
            assert len(kept) == len(set(without_flag(np.array(kept, np.int32)).tolist()))
            assert sorted(kept) == sorted(cache.page_ids().tolist())

    def _check_page(self, cache: PrefixCache, choose: random.Random) -> None:
        """One of the pages kept has what is computed for its tokens."""
        pages = [(tokens, page) for _, tokens, page in cache if page != GONE]
        pages = [one for one in pages if len(one[0]) % PAGE == 0]
        if not pages:
            return
        tokens, page = choose.choice(pages)
        whole = page < BARE
        kept = self.engine.kv_cache.read_page(page & ~BARE, whole)
        (request,) = self.llm.requests.make_several(tokens.tolist(), 1, {"max_tokens": 1})
        engine = self.llm.engine
        engine.prefill(request.sequence, tokens.tolist())
        fresh = engine.kv_cache.read_page(int(request.sequence.pages[-1]), whole)
        engine.kv_cache.release(request.sequence)
        assert kept.tobytes() == fresh.tobytes()


class _Noisy:
    """An engine of which some step fails, as if a number had not been finite or pages ran out."""

    def __init__(self, engine: Engine, choose: random.Random) -> None:
        self._engine, self._choose = engine, choose

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def run(self, inputs: Any) -> list[StepOutput]:
        if len(inputs) > 1 and self._choose.random() < 0.02:
            raise ArithmeticError("of some request of the step")
        return self._engine.run(inputs)


def _facts(request: Request) -> tuple[str, list[int], list[Any], str]:
    done = request.completion
    return done.text, done.tokens, done.logprobs, done.finish_reason
