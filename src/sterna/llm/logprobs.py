"""Logits and log-probabilities of given tokens, in chunks of bounded memory."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checks import checked_whole
from sterna.engine import Adapter, Engine, Sequence

__all__ = ["logit_chunks", "token_logprobs"]


def logit_chunks(
    engine: Engine, ids: list[int], start: int, chunk: int, adapter: Adapter | None
) -> Iterator[tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]]:
    """Yield teacher-forced logits float32 [m, vocab] and the tokens int32 [m] that they predict.

    Together the chunks predict ids[start:]; m <= chunk.
    """
    start = checked_whole("start", start, 1, len(ids))
    chunk = checked_whole("chunk", chunk, 1, 1 << 30)
    sequence = Sequence()
    try:
        for begin in range(0, len(ids) - 1, chunk):
            part = ids[begin : min(begin + chunk, len(ids) - 1)]
            first = max(begin, start - 1)  # row i scores token i + 1
            wanted = max(0, begin + len(part) - first)
            (rows,) = engine.step([(sequence, part, wanted)], adapter=adapter)
            if wanted:
                yield rows, np.array(ids[first + 1 : begin + len(part) + 1], np.int32)
    finally:
        engine.kv_cache.release(sequence)


def token_logprobs(
    engine: Engine, ids: list[int], start: int, chunk: int, adapter: Adapter | None
) -> npt.NDArray[np.float32]:
    """log p(ids[i] | ids[:i]) for i = start … n - 1, natural log, float32 [n - start]."""
    parts = [
        _native.log_softmax_at(rows, targets, engine.threads)
        for rows, targets in logit_chunks(engine, ids, start, chunk, adapter)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, np.float32)
