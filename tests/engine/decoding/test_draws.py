"""Draws from the whole vocabulary, which keep no weights, next to draws from a list of tokens."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from sterna import _native

HISTORY = np.zeros(1, np.int32)


def drawn(
    logits: npt.NDArray[np.float32], temperature: float, top_k: int, min_p: float
) -> list[int]:
    params = _native.SampleParams(temperature, top_k, 1.0, min_p, 1.0, 0.0, 0.0, [], 7, 0, 0)
    draw = (params, HISTORY, 0, None, float("nan"))
    return [_native.sample(logits.copy(), draw, position).token for position in range(100)]


@pytest.mark.parametrize("vocab", [2, 256, 257, 1000, 49_152])  # blocks have 256 tokens
@pytest.mark.parametrize("temperature", [0.2, 1.0, 3e38])
@pytest.mark.parametrize("min_p", [0.0, 0.05])
def test_all_tokens_or_all_but_one(vocab: int, temperature: float, min_p: float) -> None:
    """Without a token that cannot be drawn, top-k leaves the same tokens, and so the same draws."""
    logits = np.random.default_rng(vocab).standard_normal(vocab).astype(np.float32)
    logits[vocab // 2] = -np.inf
    found = drawn(logits, temperature, 0, min_p)
    assert found == drawn(logits, temperature, vocab - 1, min_p)
    assert vocab // 2 not in found
    assert vocab == 2 or min_p or len(set(found)) > 1
