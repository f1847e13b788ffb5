"""Programs with recurrent layers, run in steps."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sterna import _native


def run_in_steps(
    program: _native.Program,
    width: int,
    length: int,
    isa: str,
    threads: int,
    ends: Iterable[int],
    company: int,
) -> np.ndarray:
    """Return float32 [length, width]: what a sequence of `length` tokens gets.

    ends: where its steps end. company: other sequences of each step, which have other tokens.
    """
    cache = _native.KvCache([(1, 16)], 8, "f32")
    states = [_native.State(program.state_bytes) for _ in range(company + 1) if program.state_bytes]
    found, start = [], 0
    for end in sorted({*ends, length}):
        tokens = np.arange(start, end, dtype=np.int32)
        spans, fed = [], []
        for i in range(company + 1):
            pages = np.arange(2 * i, 2 * i + 2, dtype=np.int32)
            spans.append((start, len(tokens), len(tokens) * (i == company), pages))
            fed.append(np.roll(tokens, company - i))
        logits = program.run(cache, np.concatenate(fed), spans, isa, threads, states=states)[0]
        found.append(logits[:, :width].copy())
        assert not states or states[-1].position == end
        start = end
    return np.concatenate(found)
