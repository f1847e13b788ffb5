"""`Embedder`: vectors of texts, pooled as the checkpoint says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.checks import checked_items, checked_name, checked_whole
from sterna.engine import Adapter, Engine, embed
from sterna.errors import ContextError, RequestError, shown
from sterna.models.pooling import KINDS, Pooling
from sterna.tokenizer import Tokenizer

__all__ = ["Embedder", "EmbeddingInputs", "truncation"]

SIDES = ("start", "end")


@dataclass(frozen=True)
class EmbeddingInputs:
    """Texts to embed, as tokens.

    Attributes:
        tokens: Of each text, special tokens and the prompt before it included.
        cut: How many tokens each text has lost by truncation.
    """

    tokens: list[list[int]]
    cut: list[int]
    pooling: Pooling

    @property
    def n_tokens(self) -> int:
        """Tokens of all texts."""
        return sum(map(len, self.tokens))


def truncation(cut: Sequence[int]) -> str:
    """Return a message about the texts that were cut; empty if none was."""
    texts = sum(count > 0 for count in cut)
    said = f"{texts} of {len(cut)} texts were truncated, by {sum(cut)} tokens in all"
    return said if texts else ""


class Embedder:
    """Computes the vectors of `LLM.embed`, whose docstring describes the arguments."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer) -> None:
        self._engine, self._tokenizer = engine, tokenizer

    def inputs(
        self,
        texts: str | Sequence[str],
        *,
        prompt_name: str | None = None,
        prompt: str | None = None,
        pooling: str | None = None,
        truncate: bool | int | str = False,
    ) -> EmbeddingInputs:
        """Return the tokens of texts. Raises RequestError as `LLM.embed`."""
        chosen = self._pooling(pooling)
        prefix = self._prompt(chosen, prompt_name, prompt)
        context = self._engine.context
        limit = min(context, chosen.max_tokens or context)
        most = _checked_truncation(truncate, limit)
        what, tokens, cut = "a text or a list of texts", [], []
        listed = [texts] if isinstance(texts, str) else checked_items("texts", texts, what)
        for i, text in enumerate(listed):
            ids = self._tokenizer.encode(prefix + text if isinstance(text, str) else text)
            if not ids:
                raise RequestError(
                    f"texts: must have a token, but text {i} has none, as the tokenizer adds no "
                    "special tokens; leave it out"
                )
            cut.append(max(0, len(ids) - most) if most else 0)
            if most and len(ids) > most:
                ids = self._truncated(prefix + text, ids, most, truncate == "start")
            elif len(ids) > limit:
                raise ContextError(
                    f"texts: must have at most {limit} tokens, but text {i} has {len(ids)}; "
                    f"shorten or truncate it{self._longer_context(len(ids), chosen)}"
                )
            tokens.append(ids)
        return EmbeddingInputs(tokens, cut, chosen)

    def vectors(self, inputs: EmbeddingInputs, adapter: Adapter | None) -> npt.NDArray[np.float32]:
        """Compute vectors, float32 [texts, hidden_size]."""
        how = inputs.pooling
        return embed(self._engine, inputs.tokens, how.kind, how.normalise, adapter)

    def _truncated(self, text: str, ids: list[int], most: int, at_start: bool) -> list[int]:
        """Return at most `most` of a text's ids, with the special tokens around the others."""
        plain = self._tokenizer.encode(text, add_special=False)
        before = next(
            (i for i in range(len(ids)) if ids[i : i + len(plain)] == plain), len(ids) - len(plain)
        )
        after = ids[before + len(plain) :]
        room = max(0, most - before - len(after))
        middle = plain[len(plain) - room :] if at_start else plain[:room]
        return [*ids[:before], *middle, *after][:most]

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
                f"embed: {name} has no pooling configuration; use an embedding model, or pass "
                f"pooling: {', '.join(KINDS[:-1])} or {KINDS[-1]}"
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


def _checked_truncation(truncate: Any, limit: int) -> int:
    """Return the tokens beyond which texts are cut; 0: none are. Raises RequestError."""
    if truncate is False:
        return 0
    if truncate is True or truncate in SIDES:
        return limit
    if isinstance(truncate, str):
        raise RequestError(
            f"truncate: must be a flag, a number of tokens, or one of {', '.join(SIDES)}, but got "
            f"{shown(truncate)}"
        )
    checked_whole("truncate", truncate, 1, 1 << 31)
    return min(int(truncate), limit)
