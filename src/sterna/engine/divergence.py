"""How far apart two distributions of the next token are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["divergence"]

F32 = npt.NDArray[np.float32]
CHUNK = 1 << 20  # logits that are float64 at a time


def divergence(a: F32, b: F32) -> npt.NDArray[np.float64]:
    """KL(A || B) = sum p_A (ln p_A - ln p_B) in nats for logits [n, vocab], computed in float64.

    A single logit, such as a reranker's score, is that of yes, next to 0 for no.
    """
    if a.shape[1] == 1:
        a, b = (np.concatenate([x, np.zeros_like(x)], axis=1) for x in (a, b))
    made, step = np.empty(len(a)), max(1, CHUNK // max(1, a.shape[1]))
    for rows in (slice(at, at + step) for at in range(0, len(a), step)):
        log_a, log_b = _log_softmax(a[rows]), _log_softmax(b[rows])
        made[rows] = (np.exp(log_a) * (log_a - log_b)).sum(axis=1)
    return np.maximum(made, 0.0)  # rounding may make it negative


def _log_softmax(logits: F32) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x
