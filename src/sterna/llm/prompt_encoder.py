"""`PromptEncoder`: turns prompts into checked token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sterna.checks import checked_items
from sterna.engine import Engine
from sterna.errors import ContextError, RequestError, shown
from sterna.tokenizer import Tokenizer

__all__ = ["PromptEncoder"]


class PromptEncoder:
    """Encodes prompts, and checks their token ids and their length."""

    def __init__(self, tokenizer: Tokenizer, engine: Engine) -> None:
        self._tokenizer, self._context = tokenizer, engine.context
        self._model = engine.model
        self._vocab = engine.model.config.vocab_size
        self._max_context = engine.model.config.max_position

    def encode(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a text, or checked ids: at least one, at most the context. RequestError."""
        config = self._model.config
        if not config.continues:
            kind = "an encoder" if config.bidirectional else "a classifier"
            raise RequestError(
                f"prompt: must be for a model that continues it, but {self._model.name} is {kind}; "
                f"use {'score' if config.labels else 'embed'}"
            )
        if isinstance(prompt, str):
            tokens = self._tokenizer.encode(prompt) if prompt else []
        else:
            tokens = self.checked_ids("prompt", prompt)
        if not tokens:
            raise RequestError("prompt: must not be empty; give the model a text to continue")
        if len(tokens) > self._context:
            raise ContextError(
                f"prompt: must fit the context of {self._context} tokens, but has {len(tokens)}; "
                f"{self._longer_context(len(tokens))}"
            )
        return tokens

    def encode_prediction(self, prediction: str | Sequence[int] | None) -> list[int]:
        """Token ids of a predicted answer, which has no special tokens. RequestError."""
        if isinstance(prediction, str):
            return self._tokenizer.encode(prediction, add_special=False)
        return [] if prediction is None else self.checked_ids("prediction", prediction)

    def checked_ids(self, name: str, ids: object) -> list[int]:
        """Token ids of the model's vocabulary as a list; RequestError names the argument."""
        checked: list[int] = []
        for id in checked_items(name, ids, "a string or a sequence of token ids"):
            whole = isinstance(id, (int, np.integer)) and not isinstance(id, bool)
            if not whole or not 0 <= id < self._vocab:
                raise RequestError(
                    f"{name}: token ids must be whole numbers in 0..{self._vocab - 1}, but got "
                    f"{shown(id)}"
                )
            checked.append(int(id))
        return checked

    def _longer_context(self, needed: int) -> str:
        """Return the remedy for a prompt of `needed` tokens."""
        if needed > self._max_context:
            return "shorten it"
        return (
            f"set the context to {needed} or more (the model has {self._max_context}), or "
            "shorten it"
        )
