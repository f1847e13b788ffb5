"""Scheduling with a clock of its own: an engine that computes nothing and takes the time that a
formula says, and requests whose tokens are the positions that they are drawn at.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sterna import LLM, _native
from sterna.engine import PagePool, Request, Scheduler, StepInput, StepLimits, StepOutput
from sterna.engine.scheduling.events import Event
from sterna.errors import NonFiniteError
from sterna.sampling_params import SamplingParams

CONTEXT = 1 << 14
BASE_MS, TOKEN_MS = 30.0, 5.0


class Clock:
    """Seconds, that pass where somebody says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeKVCache:
    """The pages of a model without recurrent layers and windows."""

    needs_snapshots = False

    def __init__(self, pages: int) -> None:
        self.pool = PagePool(pages, lambda source, target: None)
        self.rewind = self.pool.truncate
        self.snapshot = lambda sequence, keep: True


class FakeEngine:
    """The pages of an engine, and a step that takes 30 ms and 5 ms a token."""

    def __init__(self, clock: Clock, pages: int = 10_000) -> None:
        self.kv_cache, self.clock = FakeKVCache(pages), clock
        self.steps: list[list[int]] = []  # tokens of each sequence
        self.broken: Callable[[StepInput], bool] = lambda step_input: False
        self.noise, self.pair_ms = lambda: 1.0, 0.0

    def run(self, inputs: Sequence[StepInput]) -> list[StepOutput]:
        self.kv_cache.pool.reserve([(i.sequence, len(i.tokens)) for i in inputs])
        tokens = [len(step_input.tokens) for step_input in inputs]
        seen = sum(
            n * (step_input.sequence.length + n / 2)
            for n, step_input in zip(tokens, inputs, strict=True)
        )
        ms = BASE_MS + TOKEN_MS * sum(tokens) + seen * self.pair_ms
        self.clock.now += ms * self.noise() / 1e3
        if any(map(self.broken, inputs)):
            raise NonFiniteError("layer 1: not finite")
        self.steps.append(tokens)
        outputs = []
        for step_input in inputs:
            step_input.sequence.length += len(step_input.tokens)
            token = step_input.sequence.length % 200
            drawn = [_native.SampleResult(token)] * step_input.wanted
            outputs.append(StepOutput(np.zeros((0, 0), np.float32), drawn))
        return outputs


class Bench:
    """A scheduler of a fake engine, and the requests that it was given."""

    def __init__(self, llm: LLM, pages: int = 10_000, **options: Any) -> None:
        self.llm, self.clock = llm, Clock()
        self.engine = FakeEngine(self.clock, pages)
        engine: Any = self.engine
        limits = StepLimits(**{"step_ms": 130.0, "prompt_step_ms": 500.0, **options})
        self.scheduler = Scheduler(engine, limits, clock=self.clock)
        self.requests: list[Request] = []
        self.added = 0

    def add(self, prompt: int | Sequence[int], tokens: int = 1000, **place: Any) -> Request:
        """Adds one; prompt: its tokens, or how many, which begin as no other's."""
        self.added += 1
        ids = [self.added % 199] * prompt if isinstance(prompt, int) else prompt
        params = SamplingParams(max_tokens=tokens)
        request = Request(
            ids, params, self.llm.tokenizer, context=CONTEXT, completion=None, **place
        )
        self.scheduler.add(request)
        self.requests.append(request)
        return request

    def step(self) -> list[Event]:
        """One, and everybody reads what came."""
        events = self.scheduler.step()
        for request in self.requests:
            for _ in request.pieces():
                pass
        return events

    def until(self, done: Callable[[], bool], most: int = 5000) -> int:
        for steps in range(most):
            if done():
                return steps
            assert self.step(), "it is idle"
        raise AssertionError("it does not end")

    def learnt(self) -> Bench:
        """With costs that it knows from a few requests of before."""
        for length in (500, 200, 30):
            request = self.add(length, 20)
            self.until(lambda request=request: request.finished)
        self.engine.steps.clear()
        return self
