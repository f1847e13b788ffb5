"""`Embedder`: vectors of texts, pooled as the checkpoint says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sterna.checks import checked_items, checked_name
from sterna.engine import Adapter, Engine, embed
from sterna.errors import ContextError, RequestError, shown
from sterna.models.pooling import KINDS, Pooling
from sterna.tokenizer import Tokenizer

__all__ = ["Embedder"]


class Embedder:
    """Computes the vectors of `LLM.embed`, whose docstring describes the arguments."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None,
        prompt: str | None,
        pooling: str | None,
        adapter: Adapter | None,
    ) -> npt.NDArray[np.float32]:
        """Compute vectors, float32 [texts, hidden_size]. Raises RequestError as `LLM.embed`."""
        chosen = self._pooling(pooling)
        prefix = self._prompt(chosen, prompt_name, prompt)
        tokens = self._encode(texts, prefix, chosen)
        return embed(self._engine, tokens, chosen.kind, chosen.normalise, adapter)

    def _encode(self, texts: str | Sequence[str], prefix: str, pooling: Pooling) -> list[list[int]]:
        what, context = "a text or a list of texts", self._engine.context
        most = min(context, pooling.max_tokens or context)
        tokens = []
        listed = [texts] if isinstance(texts, str) else checked_items("texts", texts, what)
        for i, text in enumerate(listed):
            ids = self._tokenizer.encode(prefix + text if isinstance(text, str) else text)
            if not text or not ids:
                raise RequestError(f"texts: must not be empty, but text {i} is; leave it out")
            if len(ids) > most:
                raise ContextError(
                    f"texts: must have at most {most} tokens, but text {i} has {len(ids)}; "
                    f"shorten it{self._longer_context(len(ids), pooling)}"
                )
            tokens.append(ids)
        return tokens

    def _pooling(self, kind: str | None) -> Pooling:
        """Return the checkpoint's own pooling, or the given kind if the model has none."""
        name, own = self._engine.model.name, self._engine.model.config.pooling
        if kind is not None:
            checked_name("pooling", kind, KINDS)
        if own is not None and kind not in (None, own.kind):
            raise RequestError(
                f"pooling: must be {own.kind}, as {name} says, but got {kind}; leave it out"
            )
        if own is None and kind is None:
            raise RequestError(
                f"embed: {name} does not say how its tokens make a vector; use an embedding "
                f"model, or choose pooling: {' or '.join(KINDS)}"
            )
        return own or Pooling(str(kind), True, {}, None, None)

    def _prompt(self, pooling: Pooling, name: str | None, text: str | None) -> str:
        """Return the prefix of each text."""
        if name is not None and text is not None:
            raise RequestError("prompt: must be given by name or as a text, but got both")
        if text is not None:
            if not isinstance(text, str):
                raise RequestError(f"prompt: must be a string, but got {shown(text)}")
            return text
        name = pooling.default_prompt if name is None else name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in pooling.prompts:
            known = ", ".join(pooling.prompts) or "none"
            raise RequestError(
                f"prompt_name: must be a prompt of {self._engine.model.name} ({known}), but got "
                f"{shown(name)}"
            )
        return pooling.prompts[name]

    def _longer_context(self, needed: int, pooling: Pooling) -> str:
        model, context = self._engine.model, self._engine.context
        most = min(model.config.max_position, pooling.max_tokens or needed)
        return f", or set the context to {needed} or more" if context < needed <= most else ""
