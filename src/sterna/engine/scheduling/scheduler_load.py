"""`SchedulerLoad`: how busy a scheduler is, for admission control and metrics of a server."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SchedulerLoad"]


@dataclass(frozen=True)
class SchedulerLoad:
    """How busy a scheduler is.

    running: requests that have pages; waiting: requests that have none yet; places: how many more
    requests may run; waiting_tokens: prompt tokens still to be computed, shared prefixes counted
    once; predicted_s: seconds until these are computed. pages: of the pool; pages_used: by
    sequences; cached_pages: kept by the prefix cache, which gives them up on demand.
    disk_errors: pages that could not be written to the prefix cache on disk.
    image_bytes: of features of images that are kept, and of the image that is being encoded.
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
