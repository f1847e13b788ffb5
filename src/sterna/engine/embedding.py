"""Embeddings of texts: hidden states of their tokens, pooled."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna.engine.adapters import Adapter
from sterna.engine.engine import PREFILL_CHUNK, Engine
from sterna.engine.kv_cache.sequence import Sequence, pages_of

__all__ = ["embed"]


def embed(
    engine: Engine,
    texts: SequenceOf[SequenceOf[int]],
    kind: str,
    normalise: bool,
    adapter: Adapter | None = None,
) -> npt.NDArray[np.float32]:
    """Return a vector of each text, float32 [texts, hidden_size].

    texts: token ids, from one to the engine's context for each text. kind: "last", the last token's
    hidden state, or "mean", the mean of all, added in order. normalise: to unit length. adapter: of
    all texts. Batching and chunking do not change a bit.
    """
    sums = np.zeros((len(texts), engine.model.config.hidden_size))
    sequences = [Sequence() for _ in texts]
    try:
        for step in _steps(engine, [len(tokens) for tokens in texts]):
            batch = []
            for i, begin, end in step:
                last = int(end == len(texts[i]))
                wanted = end - begin if kind == "mean" else last
                batch.append((sequences[i], texts[i][begin:end], wanted))
            for (i, _, end), rows in zip(step, engine.hidden_states(batch, adapter), strict=True):
                for row in rows:
                    sums[i] += row
                if end == len(texts[i]):
                    engine.kv_cache.release(sequences[i])
    finally:
        for sequence in sequences:
            engine.kv_cache.release(sequence)
    if kind == "mean":
        sums /= np.array([[len(tokens)] for tokens in texts], np.float64).reshape(-1, 1)
    if normalise:
        for row in sums:
            row /= max(math.sqrt(math.fsum(row * row)), 1e-12)
    return sums.astype(np.float32)


def _steps(engine: Engine, lengths: SequenceOf[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the parts of texts (index, begin, end) of each step: PREFILL_CHUNK tokens, or fewer if
    the pool has no pages for another text."""
    step: list[tuple[int, int, int]] = []
    room, held, free = PREFILL_CHUNK, 0, engine.kv_cache.pool.free
    for i, length in enumerate(lengths):
        pages = pages_of(length) + engine.kv_cache.pool.state_pages
        if step and held + pages > free:
            yield step
            step, room, held = [], PREFILL_CHUNK, 0
        held += pages
        begin = 0
        while begin < length:
            end = min(length, begin + room)
            step.append((i, begin, end))
            room -= end - begin
            begin = end
            if room == 0:
                yield step
                step, room, held = [], PREFILL_CHUNK, pages if begin < length else 0
    if step:
        yield step
