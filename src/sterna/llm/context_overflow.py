"""Conversations that are longer than the context: whole oldest turns are left out."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Any

__all__ = ["CONTEXT_OVERFLOW", "without_oldest"]

Messages = Sequence[Mapping[str, Any]]
#: What becomes of a conversation that does not fit: an error, or it loses its oldest turns.
CONTEXT_OVERFLOW = ("error", "truncate-oldest-turn")


def without_oldest(
    messages: Messages, n_tokens: Callable[[Messages], int], room: int
) -> tuple[Messages, int]:
    """Return the messages without as many of the oldest turns as must go, and their number.

    A turn begins with a user's message and ends before the next one. System messages that open the
    conversation stay, and so does the last turn, even if it alone is too long. n_tokens: of the
    rendered messages; each turn that goes makes them fewer. room: the most tokens.
    """
    roles = [m.get("role") if isinstance(m, Mapping) else None for m in messages]
    opening = next((i for i, r in enumerate(roles) if r not in ("system", "developer")), len(roles))
    turns = [i for i in range(opening, len(roles)) if roles[i] == "user"]
    # Without the first k turns the conversation goes on at the k-th; what precedes the first user's
    # message goes with its turn.
    starts = [opening, *turns[1:]]
    tails = [[*messages[:opening], *messages[start:]] for start in starts]
    dropped = bisect_left(tails, True, hi=len(tails) - 1, key=lambda tail: n_tokens(tail) <= room)
    return tails[dropped], dropped
