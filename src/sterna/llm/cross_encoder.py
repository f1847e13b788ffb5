"""`CrossEncoder`: how relevant texts are to queries, by a model that reads both at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.checks import checked_items
from sterna.engine import Adapter, Engine, classify
from sterna.errors import ContextError, RequestError, shown
from sterna.models import classifier
from sterna.tokenizer import Tokenizer

__all__ = ["CrossEncoder"]


class CrossEncoder:
    """Makes the scores of `LLM.score`, whose docstring describes the arguments."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer

    def score(
        self, pairs: Sequence[tuple[str, str]], adapter: Adapter | None
    ) -> npt.NDArray[np.float32]:
        """Compute scores, float32 [pairs]; RequestError."""
        model = self._engine.model
        if not model.config.labels:
            raise RequestError(
                f"score: {model.name} is no cross-encoder; use embed, or a model of the class "
                "…ForSequenceClassification"
            )
        listed = checked_items("pairs", pairs, "a list of (query, text)")
        tokens = [self._encode(i, pair) for i, pair in enumerate(listed)]
        logits = classify(self._engine, tokens, adapter)[:, 0]
        return logits if classifier.gives_raw_scores(model.config.fields) else _sigmoid(logits)

    def _encode(self, i: int, pair: object) -> tuple[list[int], int]:
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise RequestError(f"pairs: must be of (query, text), but pair {i} is {shown(pair)}")
        ids, second = self._tokenizer.encode_pair(*pair)
        if len(ids) > self._engine.context:
            raise ContextError(
                f"pairs: must have at most {self._engine.context} tokens, but pair {i} has "
                f"{len(ids)}; shorten its text"
            )
        return ids, second


def _sigmoid(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """1 / (1 + exp(-x)), of numbers that cannot overflow."""
    small = _native.exponentials(np.ascontiguousarray(-np.abs(x)))
    return (np.where(x < 0, small, np.float32(1)) / (1 + small)).astype(np.float32)
