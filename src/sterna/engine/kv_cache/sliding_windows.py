"""Pages before sliding windows: which pages a position needs, the bytes of pages in layers with and
without windows, and which memory goes back to the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.engine.kv_cache.sequence import BARE, GONE, PAGE, are_whole, pages_of, without_flag

__all__ = ["PageShape", "RefCounts", "ResidentPages", "rewind_margin"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: How far back a sequence can always go, at least and at most: for drafts of a step, and for
#: prompts that share a text and part at its questions.
LEAST_BACK, MOST_BACK = 16, 512
#: Most page ids beyond whole pages: each costs address space, and time to count.
MOST_IDS = 1 << 14


def rewind_margin(window: int) -> int:
    """Return how many positions before a window are kept, to truncate a sequence by as many."""
    return min(max(window, LEAST_BACK), MOST_BACK)


class RefCounts(NamedTuple):
    """How many sequences have each page, and how many have its part of sliding-window layers."""

    pages: I64
    parts: I64


@dataclass(frozen=True)
class PageShape:
    """The bytes of a page, and how long each part of it is seen.

    rest_bytes: in layers that attend to all positions; windowed_bytes: in layers with a window.
    window: positions of the longest window; None: nothing is ever freed. back: positions by which a
    sequence can always be truncated. step: most positions of a sequence in a step.
    """

    rest_bytes: int = 1
    windowed_bytes: int = 0
    window: int | None = None
    back: int = 0
    step: int = 0

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, over all layers."""
        return self.rest_bytes + self.windowed_bytes

    @property
    def is_split(self) -> bool:
        """Whether a page can be there for some layers only."""
        return self.window is not None and self.rest_bytes > 0

    def ids(self, count: int) -> int:
        """Return the number of page ids if memory suffices for this many whole pages."""
        if not self.is_split:
            return count
        return max(count, min(count * self.page_bytes // self.rest_bytes, MOST_IDS))

    def before(self, length: int) -> int:
        """Return the number of first pages before the windows of all positions from `length`."""
        return 0 if self.window is None else max(0, length + 1 - self.window) // PAGE

    def pages_needed(self, positions: int) -> int:
        """Return the most whole pages that a sequence takes until it has this many positions."""
        pages = parts = pages_of(positions)
        if self.window is not None:
            parts = min(pages, pages_of(self.window + self.back + self.step) + 1)
        used = self.rest_bytes * pages + self.windowed_bytes * parts
        return -(-used // self.page_bytes)

    def bytes_of(self, counts: RefCounts) -> int:
        """Return the bytes of pages that any sequence has."""
        pages, parts = (int(np.count_nonzero(each)) for each in counts)
        return pages * self.rest_bytes + parts * self.windowed_bytes

    def counted(self, pages: I32, ids: int) -> RefCounts:
        """Count how often each page is in `pages`, the tables of sequences."""
        there = pages[pages != GONE]
        whole_pages = np.bincount(without_flag(there), minlength=ids)
        if not self.is_split:
            return RefCounts(whole_pages, whole_pages)
        return RefCounts(whole_pages, np.bincount(there[there < BARE], minlength=ids))

    def without_unseen(self, pages: I32, points: Iterable[int]) -> I32:
        """Return a page table without the parts that none of the lengths in `points` needs.

        A length needs its windows, and those of lengths up to `back` before. The greatest of
        `points` is the sequence's own length.
        """
        spare, last = are_whole(pages), 0
        for point in points:
            spare[self.before(point - self.back) : pages_of(point)] = False
            last = max(last, point)
        spare[last // PAGE :] = False
        if not spare.any():
            return pages
        return np.where(spare, pages | BARE if self.is_split else GONE, pages)

    def reach(self, pages: I32, length: int) -> int:
        """Return the longest length up to `length` whose pages are all there, or 0."""
        lacking = np.flatnonzero(~are_whole(pages[: pages_of(length)]))
        while len(lacking) and lacking[-1] >= self.before(length):
            length, lacking = int(lacking[-1]) * PAGE, lacking[:-1]
        return length


class ResidentPages:
    """Which parts of pages may take memory.

    Free pages keep their memory for the next sequence. The freed part of a page that a sequence
    still has can serve none, so its memory goes back to the system; and so does that of free pages
    where the total would exceed the budget.
    """

    def __init__(
        self, shape: PageShape, ids: int, release: Callable[[int, int, bool], None] | None
    ) -> None:
        """release(first, last, windowed): frees pages' memory, in layers with windows or others."""
        self._shape, self._release = shape, release
        self._rest, self._parts = np.zeros(ids, bool), np.zeros(ids, bool)

    @property
    def nbytes(self) -> int:
        """Bytes that may take memory."""
        return self._shape.bytes_of(
            RefCounts(self._rest.astype(np.int64), self._parts.astype(np.int64))
        )

    def update(self, counts: RefCounts, taken: I32, most: int) -> None:
        """Note that free pages are taken; free memory so that the total is at most `most` bytes."""
        if self._release is None or not self._shape.is_split:
            return
        self._give(self._parts, (counts.pages > 0) & (counts.parts == 0), windowed=True)
        new = np.zeros(len(self._rest), bool)
        new[taken] = True
        # An interrupt may come anywhere: pages are noted before they take memory, and freeing their
        # memory twice is harmless.
        self._rest |= new
        self._parts |= new
        if self.nbytes > most:
            unused = (counts.pages == 0) & ~new
            self._give(self._parts, unused, windowed=True)
            self._give(self._rest, unused, windowed=False)

    def _give(self, resident: Mask, which: Mask, windowed: bool) -> None:
        pages = np.flatnonzero(resident & which)
        if not len(pages) or self._release is None:
            return
        ends = np.flatnonzero(np.diff(pages) > 1)
        for first, last in zip(
            [pages[0], *pages[ends + 1]], [*pages[ends], pages[-1]], strict=True
        ):
            self._release(int(first), int(last), windowed)
        resident[pages] = False
