"""`StopFilter`: ends a streamed text at a stop string."""

from __future__ import annotations

__all__ = ["StopFilter"]


class StopFilter:
    """Passes text on until a stop string appears; holds back a possible start of one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.stops = stops
        self.held: str = ""
        self.stopped_by: str | None = None

    def push(self, text: str) -> str:
        """Add text; returns what of it, and of the text held back, belongs to no stop string."""
        if not self.stops:
            return text
        if self.stopped:
            return ""
        self.held += text
        places = [(i, s) for s in self.stops if (i := self.held.find(s)) >= 0]
        if places:
            first, self.stopped_by = min(places)
            out, self.held = self.held[:first], ""
            return out
        keep = max((self._overlap(s) for s in self.stops), default=0)
        cut = len(self.held) - keep
        out, self.held = self.held[:cut], self.held[cut:]
        return out

    @property
    def stopped(self) -> bool:
        """Whether a stop string has come."""
        return self.stopped_by is not None

    def _overlap(self, stop: str) -> int:
        """Return the length of the longest start of `stop` that ends the held text."""
        longest = min(len(stop) - 1, len(self.held))
        return next((n for n in range(longest, 0, -1) if self.held.endswith(stop[:n])), 0)

    def flush(self) -> str:
        """Return the text held back, at the end of the answer."""
        out, self.held = ("" if self.stopped else self.held), ""
        return out
