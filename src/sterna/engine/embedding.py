"""Embeddings of texts: hidden states of their tokens, pooled; and scores of a classifier."""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna import _native, ops
from sterna.engine.adapter import Adapter
from sterna.engine.engine import PREFILL_CHUNK, Engine
from sterna.engine.kv_cache.sequence import Sequence, pages_of
from sterna.engine.step_io import StepInput
from sterna.loading import DenseLayer

__all__ = ["classify", "embed"]

F32 = npt.NDArray[np.float32]


def embed(
    engine: Engine,
    texts: SequenceOf[SequenceOf[int]],
    kind: str,
    normalise: bool,
    adapter: Adapter | None = None,
) -> npt.NDArray[np.float32]:
    """Return a vector of each text, float32 [texts, features].

    texts: token ids, from one to the engine's context for each text. kind: "last", the last token's
    hidden state, "cls", the first one's, or "mean", the mean of all, added in order; it goes
    through the model's dense layers. normalise: scale vectors to unit length. adapter: used for all
    texts. Batching and chunking do not change a bit.
    """
    sums = np.zeros((len(texts), engine.model.config.hidden_size))
    sequences = [Sequence() for _ in texts]
    try:
        for step in _steps(engine, [len(tokens) for tokens in texts]):
            batch = []
            for i, begin, end in step:
                last = int(end == len(texts[i]))
                wanted = last if kind == "last" or (kind == "cls" and begin) else end - begin
                batch.append((sequences[i], texts[i][begin:end], wanted))
            states = engine.hidden_states(batch, adapter)
            for (i, begin, end), rows in zip(step, states, strict=True):
                if kind == "cls":
                    rows = rows[: begin == 0]
                # numpy adds rows one by one, in their order.
                sums[i] = np.concatenate([sums[i : i + 1], rows]).sum(axis=0)
                if end == len(texts[i]):
                    engine.kv_cache.release(sequences[i])
    finally:
        for sequence in sequences:
            engine.kv_cache.release(sequence)
    if kind == "mean":
        sums /= np.array([[len(tokens)] for tokens in texts], np.float64).reshape(-1, 1)
    for layer in engine.model.dense:
        sums = _dense(engine, layer, sums.astype(np.float32)).astype(np.float64)
    if normalise:
        for row in sums:
            row /= max(math.sqrt(math.fsum(row * row)), 1e-12)
    return sums.astype(np.float32)


def _dense(engine: Engine, layer: DenseLayer, rows: F32) -> F32:
    """Put pooled rows through a layer; tanh by the core's exponential, as libm's bits vary."""
    rows = ops.linear(rows, layer.weight, isa=engine.isa, threads=engine.threads)
    if layer.bias is not None:
        rows = rows + layer.bias
    if layer.activation == "Tanh":
        small = _native.exponentials((-2 * np.abs(rows)).reshape(-1)).reshape(rows.shape)
        rows = np.copysign((1 - small) / (1 + small), rows)
    return rows


def classify(
    engine: Engine, texts: SequenceOf[tuple[SequenceOf[int], int]], adapter: Adapter | None = None
) -> F32:
    """Return the logits of each text, float32 [texts, labels], or [texts, vocab] of a model without
    labels: by its first or last token, or the mean of all.

    texts: token ids and the position where the second text of a pair begins.
    """
    config = engine.model.config
    row = config.label_row if config.labels else "last"
    logits: list[F32 | None] = [None] * len(texts)
    sequences = [Sequence() for _ in texts]
    try:
        for step in _steps(engine, [len(tokens) for tokens, _ in texts]):
            inputs = []
            for i, begin, end in step:
                tokens, second = texts[i]
                wanted = {"first": end - begin, "mean": 1, "last": int(end == len(tokens))}[row]
                inputs.append(
                    StepInput(
                        sequences[i],
                        tokens[begin:end],
                        wanted,
                        adapter=adapter,
                        second_part=second if config.bidirectional else None,
                    )
                )
            for (i, _, end), output in zip(step, engine.run(inputs), strict=True):
                if end == len(texts[i][0]):
                    logits[i] = output.logits[0].copy()
                    engine.kv_cache.release(sequences[i])
    finally:
        for sequence in sequences:
            engine.kv_cache.release(sequence)
    width = config.labels or config.vocab_size
    return np.array(logits, np.float32).reshape(len(texts), width)


def _steps(engine: Engine, lengths: SequenceOf[int]) -> Iterator[list[tuple[int, int, int]]]:
    """Yield the parts of texts (index, begin, end) of each step: PREFILL_CHUNK tokens, or fewer if
    the pool has no pages for another text. An encoder's texts stay whole."""
    step: list[tuple[int, int, int]] = []
    room, pages_in_step, free = PREFILL_CHUNK, 0, engine.kv_cache.pool.free
    whole = engine.model.config.bidirectional
    for i, length in enumerate(lengths):
        pages = pages_of(length) + engine.kv_cache.pool.state_pages
        if step and (pages_in_step + pages > free or (whole and length > room)):
            yield step
            step, room, pages_in_step = [], PREFILL_CHUNK, 0
        pages_in_step += pages
        begin = 0
        while begin < length:
            end = length if whole else min(length, begin + room)
            step.append((i, begin, end))
            room -= end - begin
            begin = end
            if room <= 0:
                yield step
                step, room, pages_in_step = [], PREFILL_CHUNK, pages if begin < length else 0
    if step:
        yield step
