"""`EncodingCosts`: how many rows of an image fit into a given time, learnt from earlier rows."""

from __future__ import annotations

from sterna.engine.images.image_encoding import Slice

__all__ = ["EncodingCosts"]

#: Most rows that are computed at once: enough to fill the matrix units, few enough for memory.
MOST_ROWS = 1024
#: Rows come in multiples of this number: blocks of all units divide it.
ROW_MULTIPLE = 16
#: So few rows are computed only if nothing else is in that time, or if they are the last.
FEWEST_ROWS = 64
#: Rows of a kind of part of which nothing is learnt.
FIRST_ROWS = 32
#: Weight of a new time in the average.
NEWEST = 0.5


class EncodingCosts:
    """Predicts the time of rows. Parts of a kind multiply equally many numbers."""

    def __init__(self) -> None:
        #: Of a multiplication, by the kind of part.
        self._ms: dict[tuple[int, int, bool], float] = {}

    def rows(self, following: Slice, ms: float, least: bool) -> int:
        """Return how many of the next rows fit into `ms` milliseconds.

        least: compute some rows even if they take longer.
        """
        most = min(following.left, MOST_ROWS)
        per_mac = self._ms.get(following.kind)
        if per_mac is None:
            return min(most, FIRST_ROWS) if least or ms > 0 else 0
        fitting = min(float(most), max(ms, 0.0) / (per_mac * following.macs))
        if fitting >= most:
            return most
        rows = int(fitting) // ROW_MULTIPLE * ROW_MULTIPLE
        if least:
            return max(rows, min(most, ROW_MULTIPLE))
        return rows if rows >= FEWEST_ROWS else 0

    def learn(self, following: Slice, rows: int, ms: float) -> None:
        """Learn from the time, `ms`, that `rows` of these rows took."""
        new = ms / (rows * following.macs)
        known = self._ms.get(following.kind, new)
        self._ms[following.kind] = known + NEWEST * (new - known)
