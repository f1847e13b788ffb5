"""Tokens and log-probabilities in the form of OpenAI's protocols."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sterna.outputs import Delta, Piece, TokenLogprob
from sterna.tokenizer import Tokenizer

__all__ = ["ContentLogprobs", "TextLogprobs", "chat_logprob", "token_text"]


def token_text(tokenizer: Tokenizer, id: int) -> str:
    """Return a token's text, or `bytes:\\xe2\\x82` if it is only part of a character."""
    data = tokenizer.token_bytes(id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def chat_logprob(tokenizer: Tokenizer, logprobs: TokenLogprob, count: int) -> dict[str, Any]:
    """Make an entry of a chat's `logprobs.content`, with at most `count` alternatives."""

    def entry(id: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(id)
        text = data.decode("utf-8", "replace")
        return {"token": text, "logprob": logprob, "bytes": list(data)}

    top = [entry(id, logprob) for id, logprob in logprobs.top[:count]]
    return {**entry(logprobs.token, logprobs.logprob), "top_logprobs": top}


class ContentLogprobs:
    """The log-probabilities of an answer's content, without those of reasoning, calls and markers.

    Attributes:
        count: Alternatives per token; None: the request asks for no log-probabilities.
        entries: Of the whole content so far, as `chat_logprob` makes them.
    """

    def __init__(self, tokenizer: Tokenizer, count: int | None) -> None:
        self._tokenizer = tokenizer
        self.count: int | None = count
        self._pieces: list[Piece] = []  # that deltas have not been made of
        self.entries: list[dict[str, Any]] = []

    def take(self, piece: Piece | None, deltas: list[Delta], unread: int) -> list[dict[str, Any]]:
        """Return the entries of the tokens that have a part in the content of `deltas`.

        piece: the one that the parser made the deltas of; None at the answer's end. unread: the
        characters at the end of its text that the parser keeps for later.
        """
        if self.count is None:
            return []
        if piece is not None:
            self._pieces.append(piece)
        if not deltas:
            return []
        text = "".join(piece.text for piece in self._pieces)
        content = "".join(delta.text for delta in deltas if delta.kind == "content")
        read = len(text) - unread
        begin = max(0, text.rfind(content, 0, read)) if content else len(text)
        logprobs, rest, end = [], [], 0
        for piece in self._pieces:
            start, end = end, end + len(piece.text)
            logprob = piece.logprob
            inside = start < begin + len(content) and (start >= begin or end > begin)
            if inside and logprob is not None:
                logprobs.append(chat_logprob(self._tokenizer, logprob, self.count))
                logprob = None  # only once per token
            if end > read:
                rest.append(replace(piece, text=text[max(start, read) : end], logprob=logprob))
        self._pieces = rest
        self.entries += logprobs
        return logprobs


class TextLogprobs:
    """The `logprobs` of a completion, token by token. count: alternatives per token."""

    def __init__(self, tokenizer: Tokenizer, count: int) -> None:
        self._tokenizer, self._count = tokenizer, count
        self._end = 0  # length of the text so far
        self._fields: dict[str, list[Any]] = {}
        self.take()

    def take(self) -> dict[str, list[Any]]:
        """Return and clear the entries since the last call."""
        fields = self._fields
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        self._fields = {name: [] for name in names}
        return fields

    def add(self, token: int, logprobs: TokenLogprob | None) -> None:
        """Add a token; `logprobs` is None for the first token of a prompt."""
        text = token_text(self._tokenizer, token)
        self._fields["tokens"].append(text)
        self._fields["token_logprobs"].append(None if logprobs is None else logprobs.logprob)
        self._fields["top_logprobs"].append(None if logprobs is None else self._top(text, logprobs))
        self._fields["text_offset"].append(self._end)
        self._end += len(text)

    def _top(self, text: str, logprobs: TokenLogprob) -> dict[str, float] | None:
        if not self._count:
            return None
        top: dict[str, float] = {}
        for id, logprob in logprobs.top[: self._count]:
            # Several ids may have the same text: keep the likeliest, which comes first.
            top.setdefault(token_text(self._tokenizer, id), logprob)
        top.setdefault(text, logprobs.logprob)
        return top

    def extend(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob | None]) -> None:
        """Add the tokens of a prompt."""
        for pair in zip(tokens, logprobs, strict=True):
            self.add(*pair)
