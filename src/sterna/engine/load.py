"""`Load`: how busy a scheduler is, as a server asks it before it takes a request."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Load"]


@dataclass(frozen=True)
class Load:
    """How busy a scheduler is.

    running: requests that have pages; waiting: those that have none yet; places: how many more may
    run beside those that do; waiting_tokens: of prompts, to be computed, those that several begin
    with once; predicted_s: until these are. pages: of the pool; pages_used: by sequences;
    cached_pages: kept of earlier requests, free to be had.
    """

    running: int
    waiting: int
    places: int
    waiting_tokens: int
    predicted_s: float
    pages_used: int
    pages: int
    cached_pages: int

    @property
    def idle(self) -> bool:
        """Whether nobody is here."""
        return not self.running and not self.waiting

    def queue(self, more: int) -> int:
        """How many would wait for others to end if so many more came."""
        return max(0, self.waiting + more - self.places)
