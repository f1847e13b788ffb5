"""Tokens and their probabilities as OpenAI's protocols write them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sterna.outputs import TokenLogprob
from sterna.tokenizer import Tokenizer

__all__ = ["TextLogprobs", "chat_logprob", "token_text"]


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """A token's own text; `bytes:\\xe2\\x82` where it is a part of a character alone."""
    data = tokenizer.spelling(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprob(tokenizer: Tokenizer, found: TokenLogprob, most: int) -> dict[str, Any]:
    """An entry of a chat's `logprobs.content`, with at most so many alternatives."""

    def entry(id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.spelling(id)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    top = [entry(id, logprob) for id, logprob in found.top[:most]]
    return {**entry(found.token, found.logprob), "top_logprobs": top}


class TextLogprobs:
    """The `logprobs` of a completion, a token at a time. most: how many alternatives."""

    def __init__(self, tokenizer: Tokenizer, most: int) -> None:
        self._tokenizer, self._most = tokenizer, most
        self._end = 0  # of the text so far
        self._fields: dict[str, list[Any]] = {}
        self.take()

    def take(self) -> dict[str, list[Any]]:
        """What was added since the last time."""
        fields = self._fields
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        self._fields = {name: [] for name in names}
        return fields

    def add(self, token: int, found: TokenLogprob | None) -> None:
        """A token; None for the first of a prompt, which nothing precedes."""
        text = token_text(self._tokenizer, token)
        self._fields["tokens"].append(text)
        self._fields["token_logprobs"].append(None if found is None else found.logprob)
        self._fields["top_logprobs"].append(None if found is None else self._top(text, found))
        self._fields["text_offset"].append(self._end)
        self._end += len(text)

    def _top(self, text: str, found: TokenLogprob) -> dict[str, float] | None:
        if not self._most:
            return None
        top: dict[str, float] = {}
        for id, logprob in found.top[: self._most]:
            # Several ids may have one text: the first is the likeliest.
            top.setdefault(token_text(self._tokenizer, id), logprob)
        top.setdefault(text, found.logprob)
        return top

    def extend(self, tokens: Sequence[int], found: Sequence[TokenLogprob | None]) -> None:
        """Tokens of a prompt."""
        for pair in zip(tokens, found, strict=True):
            self.add(*pair)
