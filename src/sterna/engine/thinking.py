"""`Thinking`: where an answer's thoughts are, and that they leave room for what they are about."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sterna.chat.thoughts import CLOSE, OPEN

__all__ = ["ROOM", "Thinking"]

#: Of the tokens that an answer may have, those that thoughts before a constraint may not take: who
#: asked for a constraint wants what it describes, and a model may think without end.
ROOM = 0.5
_OPEN, _CLOSE = OPEN.encode(), CLOSE.encode()


class Thinking:
    """Follows an answer, a token at a time.

    opened: whether it begins within thoughts. budget: tokens after which these are closed, by the
    tokens `closing`. spelling: the bytes of a token.
    """

    __slots__ = ("_budget", "_closing", "_count", "_spelling", "_text", "_thinks")

    def __init__(
        self, opened: bool, budget: int, closing: Sequence[int], spelling: Callable[[int], bytes]
    ) -> None:
        self._budget, self._closing, self._spelling = budget, closing, spelling
        self._count = 0
        self._text = _OPEN if opened else b""  # its end, as far as a mark may be in it
        self._thinks = True  # or may begin to

    def take(self, token: int) -> None:
        """The next token of the answer."""
        self._count += 1
        if not self._thinks:
            return
        text = (self._text + self._spelling(token)).lstrip()
        start = text[: len(_OPEN)]
        self._thinks = _OPEN.startswith(start) and _CLOSE not in text
        self._text = text if len(text) < len(_OPEN) else _OPEN + text[len(_OPEN) :][-len(_CLOSE) :]

    def due(self) -> int | None:
        """The token that must come next, where thoughts have taken all that they may."""
        at = self._count - self._budget
        return self._closing[at] if self._thinks and 0 <= at < len(self._closing) else None

    def after(self, tokens: Sequence[int]) -> Thinking:
        """As it is behind more tokens."""
        other = Thinking(False, self._budget, self._closing, self._spelling)
        other._count, other._text, other._thinks = self._count, self._text, self._thinks
        for token in tokens:
            other.take(token)
        return other
