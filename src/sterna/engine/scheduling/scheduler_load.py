"""`SchedulerLoad`: how busy a scheduler is, for admission control and metrics of a server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerLoad"]


@dataclass(frozen=True)
class SchedulerLoad:
    """How busy a scheduler is.

    Attributes:
        running: Requests that have pages.
        waiting: Requests that have none yet.
        places: How many more requests may run.
        waiting_tokens: Prompt tokens still to be computed, shared prefixes counted once.
        predicted_s: Predicted seconds until these are computed.
        pages_used: Pages of sequences.
        pages: Pages of the pool.
        cached_pages: Pages of the prefix cache, which are freed on demand.
        image_bytes: Bytes of image features, those of an unfinished image included.
        disk_errors: Pages that could not be written to the prefix cache on disk.
    """

    running: int
    waiting: int
    places: int
    waiting_tokens: int
    predicted_s: float
    pages_used: int
    pages: int
    cached_pages: int
    image_bytes: int = 0
    disk_errors: int = 0

    @property
    def idle(self) -> bool:
        """Whether the scheduler has no request."""
        return not self.running and not self.waiting

    def queue(self, more: int) -> int:
        """Return how many requests would wait if `more` were added."""
        return max(0, self.waiting + more - self.places)
