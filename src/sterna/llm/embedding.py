"""`Embedding`: vectors of texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sterna.checks import checked_items, checked_name
from sterna.engine import embed
from sterna.errors import ContextError, RequestError, shown
from sterna.llm.loaded import Loaded
from sterna.models.pooling import KINDS, Pooling

__all__ = ["Embedding"]


class Embedding(Loaded):
    """The part of an `LLM` that makes vectors, as the checkpoint says how."""

    def embed(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        pooling: str | None = None,
        adapter: str | None = None,
    ) -> npt.NDArray[np.float32]:
        """A vector of each text, float32 [texts, hidden_size]; one row for a single string.

        They are made, and where the checkpoint says so brought to unit length, as its files for
        sentence-transformers or its GGUF metadata say; then a.b is the cosine similarity. A text is
        the same vector alone and among others, on every CPU.

        prompt_name: which of the checkpoint's prompts stands before each text ("query", say);
        prompt: another one; default: the checkpoint's default, mostly none. pooling: "last" or
        "mean" for a model whose files do not say, whose vectors are then of unit length. adapter:
        as in `generate`.

        Raises RequestError for a text that is empty or longer than the model takes (it is not cut),
        an unknown prompt, or a model that says nothing of pooling where `pooling` does not either.
        """
        how = self._pooling(pooling)
        before = self._prompt(how, prompt_name, prompt)
        what = "a text or a list of texts"
        listed = [texts] if isinstance(texts, str) else checked_items("texts", texts, what)
        most = min(self.context, how.max_tokens or self.context)
        tokens = []
        for i, text in enumerate(listed):
            ids = self.tokenizer.encode(before + text if isinstance(text, str) else text)
            if not text or not ids:
                raise RequestError(f"texts: must not be empty, but text {i} is; leave it out")
            if len(ids) > most:
                raise ContextError(
                    f"texts: must have at most {most} tokens, but text {i} has {len(ids)}; "
                    f"shorten it{self._longer_context(len(ids), how)}"
                )
            tokens.append(ids)
        chosen = self.adapters.chosen(adapter)
        return embed(self.engine, tokens, how.kind, how.normalise, chosen)

    def _pooling(self, kind: str | None) -> Pooling:
        """The checkpoint's, or a kind for a model that has none."""
        own = self.engine.model.config.pooling
        if kind is not None:
            checked_name("pooling", kind, KINDS)
        if own is not None and kind not in (None, own.kind):
            raise RequestError(
                f"pooling: must be {own.kind}, as {self.name} says, but got {kind}; leave it out"
            )
        if own is None and kind is None:
            raise RequestError(
                f"embed: {self.name} does not say how its tokens make a vector; use a model of "
                f"embeddings, or choose pooling: {' or '.join(KINDS)}"
            )
        return own or Pooling(str(kind), True, {}, None, None)

    def _prompt(self, how: Pooling, name: str | None, text: str | None) -> str:
        """What stands before each text."""
        if name is not None and text is not None:
            raise RequestError("prompt: must be given by name or as a text, but got both")
        if text is not None:
            if not isinstance(text, str):
                raise RequestError(f"prompt: must be a string, but got {shown(text)}")
            return text
        name = how.default_prompt if name is None else name
        if name is None:
            return ""
        if not isinstance(name, str) or name not in how.prompts:
            known = ", ".join(how.prompts) or "none"
            raise RequestError(
                f"prompt_name: must be a prompt of {self.name} ({known}), but got {shown(name)}"
            )
        return how.prompts[name]

    def _longer_context(self, least: int, how: Pooling) -> str:
        most = min(self.engine.model.config.max_position, how.max_tokens or least)
        return f", or set the context to {least} or more" if self.context < least <= most else ""
