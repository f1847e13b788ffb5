"""Shared by the tests of the exact head: packing a head, screening it, ranking its logits."""

from __future__ import annotations

import numpy as np

from sterna import _native, ops
from sterna.engine import Draw
from sterna.formats import PackedWeight, Shadow

F32 = np.float32
NO_HISTORY = np.zeros(0, np.int32)
ISAS = _native.isas()


def pack(w: np.ndarray, format: str = "bf16") -> PackedWeight:
    return ops.pack(np.asarray(w, F32), format=format, threads=1)


def screened(
    head: PackedWeight,
    x: np.ndarray,
    top: list[int] | list[Draw],
    isa: str = ISAS[-1],
    threads: int = 1,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[int]]:
    """(logits, low, high, candidates) of rows x: the `top` largest, or what a draw wants."""
    shadow = Shadow.of(head, threads)
    return _native.screened(
        head.native(),
        shadow.rows.native(),
        shadow.bounds,
        np.ascontiguousarray(x, F32),
        [(t, 0.0) for t in top if isinstance(t, int)],
        [t.native for t in top if isinstance(t, Draw)],
        isa,
        threads,
    )


def ranked(logits: np.ndarray) -> np.ndarray:
    """Ids as the sampler ranks them: largest first, the lowest id among equals."""
    return np.lexsort((np.arange(len(logits)), -logits))
