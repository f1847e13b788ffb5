"""How far apart two distributions of the next token are."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["divergence"]

F32 = npt.NDArray[np.float32]


def divergence(a: F32, b: F32) -> npt.NDArray[np.float64]:
    """KL(A || B) = sum p_A (ln p_A - ln p_B) in nats for logits [n, vocab], computed in float64."""
    log_a, log_b = _log_softmax(a), _log_softmax(b)
    apart: npt.NDArray[np.float64] = (np.exp(log_a) * (log_a - log_b)).sum(axis=1)
    return np.maximum(apart, 0.0)  # rounding may make it negative


def _log_softmax(logits: F32) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x
