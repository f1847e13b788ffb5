"""Reads of an exact head per token: bytes, and the float rows that screening leaves open."""

from __future__ import annotations

from sterna.bench.greedy import Greedy
from sterna.engine import Engine, Sequence

__all__ = ["head_per_token"]

STEPS = 16  # steps of greedy decoding, after a prompt of as many tokens


def head_per_token(engine: Engine) -> dict[str, float | None]:
    """Measure bytes read and rows computed per greedy token; None without an exact head."""
    if engine.model.head != "exact":
        return {"head_bytes_per_token": None, "rows_rescored_per_token": None}
    vocab = engine.model.config.vocab_size
    steps = max(1, min(STEPS, engine.context // 2))
    sequence = Sequence()
    try:
        greedy = Greedy(sequence, [(i * 7919 + 1) % vocab for i in range(steps)], 2 * steps)
        Greedy.step(engine, [greedy])
        sequence.head_bytes = sequence.rows_rescored = 0
        for _ in range(steps):
            Greedy.step(engine, [greedy])
        return {
            "head_bytes_per_token": round(sequence.head_bytes / steps),
            "rows_rescored_per_token": round(sequence.rows_rescored / steps, 1),
        }
    finally:
        engine.kv_cache.release(sequence)
