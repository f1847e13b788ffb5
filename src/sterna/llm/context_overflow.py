"""Conversations that are longer than the context: what is left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["CONTEXT_OVERFLOW", "SINKS", "opening_of", "without_oldest"]

Messages = Sequence[Mapping[str, Any]]
#: What becomes of a conversation that does not fit: an error, or it loses its oldest turns; with
#: "shift", the answer also goes on where the context ends, without the older half of the tokens.
CONTEXT_OVERFLOW = ("error", "truncate-oldest-turn", "shift")
#: Tokens that stay in any case when a context is shifted: much attention goes to the first four
#: (StreamingLLM, arXiv 2309.17453, section 3.1).
SINKS = 4


def _roles(messages: Messages) -> list[Any]:
    return [m.get("role") if isinstance(m, Mapping) else None for m in messages]


def opening_of(messages: Messages) -> Messages:
    """Return the system messages that open a conversation."""
    others = (i for i, role in enumerate(_roles(messages)) if role not in ("system", "developer"))
    return messages[: next(others, len(messages))]


def without_oldest(
    messages: Messages, n_tokens: Callable[[Messages], int], room: int
) -> tuple[Messages, int]:
    """Return the messages without as many of the oldest turns as must go, and their number.

    A turn begins with a user's message and ends before the next one. System messages that open the
    conversation stay, and so does the last turn, even if it alone is too long. n_tokens: of the
    rendered messages; each turn that goes makes them fewer. room: the most tokens.
    """
    roles, opening = _roles(messages), len(opening_of(messages))
    turns = [i for i in range(opening, len(roles)) if roles[i] == "user"]
    # Without the first k turns the conversation goes on at the k-th; what precedes the first user's
    # message goes with its turn.
    starts = [opening, *turns[1:]]
    tails = [[*messages[:opening], *messages[start:]] for start in starts]
    dropped = bisect_left(tails, True, hi=len(tails) - 1, key=lambda tail: n_tokens(tail) <= room)
    return tails[dropped], dropped
