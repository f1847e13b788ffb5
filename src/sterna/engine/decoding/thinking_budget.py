"""`ThinkingBudget`: closes an answer's thoughts in time for the constrained part behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sterna.chat.reasoning import CLOSE, OPEN

__all__ = ["ROOM", "ThinkingBudget"]

#: Share of an answer's tokens that thoughts before a constraint may not use. A model may think
#: without end, but a client that sets a constraint wants the text that it describes.
ROOM = 0.5
_OPEN, _CLOSE = OPEN.encode(), CLOSE.encode()


class ThinkingBudget:
    """Follows an answer token by token, and says when its thoughts must be closed.

    opened: whether the answer begins within thoughts. budget: tokens after which the tokens
    `closing` close them. token_bytes: returns the bytes of a token.
    """

    __slots__ = ("_budget", "_closing", "_count", "_text", "_thinks", "_token_bytes")

    def __init__(
        self, opened: bool, budget: int, closing: Sequence[int], token_bytes: Callable[[int], bytes]
    ) -> None:
        self._budget, self._closing, self._token_bytes = budget, closing, token_bytes
        self._count = 0
        self._text = _OPEN if opened else b""  # the end of the answer, as long as a mark
        self._thinks = True  # until a mark closes thoughts, or the answer begins without

    def take(self, token: int) -> None:
        """Take the next token of the answer."""
        self._count += 1
        if not self._thinks:
            return
        text = (self._text + self._token_bytes(token)).lstrip()
        start = text[: len(_OPEN)]
        self._thinks = _OPEN.startswith(start) and _CLOSE not in text
        self._text = text if len(text) < len(_OPEN) else _OPEN + text[len(_OPEN) :][-len(_CLOSE) :]

    def due(self) -> int | None:
        """Return the token that must come next once thoughts have used their budget, else None."""
        at = self._count - self._budget
        return self._closing[at] if self._thinks and 0 <= at < len(self._closing) else None

    def after(self, tokens: Sequence[int]) -> ThinkingBudget:
        """Return a copy that has taken more tokens."""
        other = ThinkingBudget(False, self._budget, self._closing, self._token_bytes)
        other._count, other._text, other._thinks = self._count, self._text, self._thinks
        for token in tokens:
            other.take(token)
        return other
