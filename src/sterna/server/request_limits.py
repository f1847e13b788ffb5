"""Which requests the server accepts: limits per key, of the queue, and at shutdown."""

from __future__ import annotations

import math
from collections import Counter

from sterna.engine import SchedulerLoad
from sterna.server.errors import ApiError
from sterna.server.settings import Settings

__all__ = ["RequestLimits"]


class RequestLimits:
    """Counts the requests of clients and refuses those beyond the limits.

    Requests of batches are not counted: they only use idle time.

    Attributes:
        draining: the server is shutting down, so nothing new begins.
        clients: the number of clients' requests in progress.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.draining = False
        self.clients: int = 0
        self._by_key: Counter[str] = Counter()

    def enter(self, key: str) -> None:
        """Count a client's request. ApiError 429 if its key has too many in progress."""
        limit = self._settings.max_per_key
        if limit is not None and self._by_key[key] >= limit:
            raise ApiError(
                429,
                f"key: may have at most {limit} requests at a time",
                code="key_limit",
                retry_after=1,
            )
        self._by_key[key] += 1
        self.clients += 1

    def leave(self, key: str) -> None:
        """Undo one `enter`."""
        self.clients -= 1
        self._by_key[key] -= 1
        self._by_key += Counter()  # drops keys with a count of 0

    def require_open(self) -> None:
        """Raise ApiError 503 if the server is shutting down."""
        if self.draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)

    def require_room(self, load: SchedulerLoad, count: int, wait_s: float | None = None) -> None:
        """Raise ApiError 429 if `count` more requests would make the queue too long.

        wait_s: the predicted wait of these requests; default: until all prompts are computed.
        Requests that fit into the next step do not queue, and an idle engine takes any number.
        """
        settings = self._settings
        wait_s = load.predicted_s if wait_s is None else wait_s
        wait = max(1, math.ceil(wait_s))
        if not load.idle and load.queue(count) > settings.max_queue:
            raise ApiError(
                429,
                f"The queue is full: at most {settings.max_queue} requests may wait.",
                code="queue_full",
                retry_after=wait,
            )
        if wait_s > settings.max_wait:
            raise ApiError(
                429,
                f"The queue is too long: {wait} s, of at most {settings.max_wait:g} s.",
                code="queue_full",
                retry_after=wait,
            )
