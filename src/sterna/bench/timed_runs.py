"""A timed prompt, and timed steps of decoding, with the seconds of each kind of operation."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sterna.bench.greedy import Greedy
from sterna.engine import DecidingLogits, Engine
from sterna.engine import Sequence as EngineSequence

__all__ = ["PROMPT_OF_TG", "Measured", "generate", "prompt", "prompt_tokens"]

PROMPT_OF_TG = 32  # tokens in the cache of each sequence before generation is timed


class Measured(NamedTuple):
    """Seconds of one run of a test: in all, until its first token, and by kind of operation.

    layers_s: in linear layers but the head. recurrent_s: in recurrent layers, without their linear
    layers and their gated norm. left_out: bytes of weights that a step did not read because they
    meet zeros.
    """

    seconds: float
    first_s: float
    layers_s: float
    attention_s: float
    left_out: float = 0.0
    recurrent_s: float = 0.0


def prompt_tokens(engine: Engine, n: int, first: int = 0) -> list[int]:
    """Return n different ids of a prompt, which begins at `first`."""
    vocab = engine.model.config.vocab_size
    return [((i + first) * 7919 + 1) % vocab for i in range(n)]


@contextlib.contextmanager
def _sequences(
    engine: Engine, count: int, depth: int, source: EngineSequence | None
) -> Iterator[list[EngineSequence]]:
    """Make `count` sequences with `depth` positions copied from `source`; free their pages."""
    sequences: list[EngineSequence] = []
    try:
        for _ in range(count):
            at_depth = (
                engine.kv_cache.repeated(source, depth) if depth and source else EngineSequence()
            )
            sequences.append(at_depth)
        yield sequences
    finally:
        for sequence in sequences:
            engine.kv_cache.release(sequence)


def prompt(
    engine: Engine, n: int, depth: int = 0, source: EngineSequence | None = None
) -> Measured:
    """Time a prompt of n tokens, after `depth` positions that repeat those of `source`."""
    with _sequences(engine, 1, depth, source) as (sequence,):
        before = engine.seconds
        begin = time.perf_counter()
        engine.prefill(sequence, prompt_tokens(engine, n), DecidingLogits(1))
        took = time.perf_counter() - begin
        spent = _spent(engine, before)
        recurrent = _recurrent(spent)
        return Measured(took, took, spent["linear"], spent["attention"], recurrent_s=recurrent)


def generate(
    engine: Engine, n: int, batch: int, depth: int = 0, source: EngineSequence | None = None
) -> Measured:
    """Time n steps of `batch` sequences, after `depth` positions and PROMPT_OF_TG prompt tokens."""
    with _sequences(engine, batch, depth, source) as sequences:
        start = time.perf_counter()
        running = [
            Greedy(sequence, prompt_tokens(engine, PROMPT_OF_TG, j), PROMPT_OF_TG + n)
            for j, sequence in enumerate(sequences)
        ]
        for one in running:
            Greedy.step(engine, [one])
        before = engine.seconds
        left_out = 0
        begin = time.perf_counter()
        for _ in range(n):
            Greedy.step(engine, running)
            left_out += engine.skipped_bytes
        took = time.perf_counter() - begin
        spent = _spent(engine, before)
        first = (begin - start) / batch
        recurrent = _recurrent(spent)
        return Measured(took, first, spent["linear"], spent["attention"], left_out / n, recurrent)


def _spent(engine: Engine, before: Mapping[str, float]) -> dict[str, float]:
    """Return the seconds of each kind of operation since `before`."""
    return {kind: now - before[kind] for kind, now in engine.seconds.items()}


def _recurrent(spent: Mapping[str, float]) -> float:
    """Add up the seconds of recurrent layers, without their linear layers."""
    kinds = "conv short_conv gates recurrence state_space selective_scan rg_lru"
    return sum(spent.get(kind, 0.0) for kind in kinds.split())
