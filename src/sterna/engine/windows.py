"""Pages behind windows: what a page takes in layers with and without, which pages a position needs,
and whose memory goes back to the system.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna.engine.sequence import BARE, GONE, PAGE, are_whole, pages_of, without_flag

__all__ = ["Held", "PageShape", "Resident", "way_back"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: How far back a sequence can go for certain, at least and at most: the drafts of a step are taken
#: back, and prompts part where questions about one text begin.
LEAST_BACK, MOST_BACK = 16, 512
#: A page beyond those that a pool has room for whole costs address space, and time to count.
MOST_IDS = 1 << 14


def way_back(window: int) -> int:
    """Positions before a window that are kept, so that a sequence can be cut by as many."""
    return min(max(window, LEAST_BACK), MOST_BACK)


class Held(NamedTuple):
    """How many have each page, and how many of these its part of the layers with windows."""

    pages: I64
    parts: I64


@dataclass(frozen=True)
class PageShape:
    """What a page takes, and what is seen of it.

    rest_bytes: in layers that see all positions; windowed_bytes: in those with a window. window:
    how many of the last positions the latter see at most; None: nothing is ever given back.
    back: positions by which a sequence can always be cut. step: that are computed at once, at most.
    """

    rest_bytes: int = 1
    windowed_bytes: int = 0
    window: int | None = None
    back: int = 0
    step: int = 0

    @property
    def page_bytes(self) -> int:
        """Of all layers."""
        return self.rest_bytes + self.windowed_bytes

    @property
    def is_split(self) -> bool:
        """Whether a page can be there for some layers alone."""
        return self.window is not None and self.rest_bytes > 0

    def ids(self, count: int) -> int:
        """Pages to be named, where bytes suffice for so many whole ones."""
        if not self.is_split:
            return count
        return max(count, min(count * self.page_bytes // self.rest_bytes, MOST_IDS))

    def before(self, length: int) -> int:
        """How many first pages a position from `length` on does not see, in layers with windows."""
        return 0 if self.window is None else max(0, length + 1 - self.window) // PAGE

    def at_most(self, positions: int) -> int:
        """Whole pages whose bytes a sequence takes until it has so many positions."""
        pages = parts = pages_of(positions)
        if self.window is not None:
            parts = min(pages, pages_of(self.window + self.back + self.step) + 1)
        used = self.rest_bytes * pages + self.windowed_bytes * parts
        return -(-used // self.page_bytes)

    def bytes_of(self, held: Held) -> int:
        """What those that somebody has take."""
        pages, parts = (int(np.count_nonzero(each)) for each in held)
        return pages * self.rest_bytes + parts * self.windowed_bytes

    def counted(self, pages: I32, ids: int) -> Held:
        """How often each comes in sequences' pages."""
        there = pages[pages != GONE]
        held = np.bincount(without_flag(there), minlength=ids)
        if not self.is_split:
            return Held(held, held)
        return Held(held, np.bincount(there[there < BARE], minlength=ids))

    def stripped(self, pages: I32, points: Iterable[int]) -> I32:
        """The pages of a sequence without what none of these lengths needs, nor a length up to
        `back` before; the greatest is the sequence's own."""
        spare, last = are_whole(pages), 0
        for point in points:
            spare[self.before(point - self.back) : pages_of(point)] = False
            last = max(last, point)
        spare[last // PAGE :] = False
        if not spare.any():
            return pages
        return np.where(spare, pages | BARE if self.is_split else GONE, pages)

    def reach(self, pages: I32, length: int) -> int:
        """The greatest length up to this one, or 0, for which its pages suffice."""
        lacking = np.flatnonzero(~are_whole(pages[: pages_of(length)]))
        while len(lacking) and lacking[-1] >= self.before(length):
            length, lacking = int(lacking[-1]) * PAGE, lacking[:-1]
        return length


class Resident:
    """Which parts of pages may take memory.

    Pages that nobody has keep theirs for whoever takes them next. A part behind windows, whose page
    is still had, could serve nobody, so its memory goes back to the system; and where pages that
    nobody has would bring all of it beyond the budget, so does theirs.
    """

    def __init__(
        self, shape: PageShape, ids: int, release: Callable[[int, int, bool], None] | None
    ) -> None:
        """release: gives back what pages first..last take, in layers with windows or in others."""
        self._shape, self._release = shape, release
        self._rest, self._parts = np.zeros(ids, bool), np.zeros(ids, bool)

    @property
    def nbytes(self) -> int:
        """What all of it takes."""
        return self._shape.bytes_of(Held(self._rest.astype(np.int64), self._parts.astype(np.int64)))

    def settle(self, held: Held, taken: I32, most: int) -> None:
        """Pages are taken, by those that do not have them yet; all may take so many bytes."""
        if self._release is None or not self._shape.is_split:
            return
        self._give(self._parts, (held.pages > 0) & (held.parts == 0), windowed=True)
        new = np.zeros(len(self._rest), bool)
        new[taken] = True
        # An interrupt may come in between: what may take memory is known before it does, and what
        # is thought to take some may be given back twice.
        self._rest |= new
        self._parts |= new
        if self.nbytes > most:
            unused = (held.pages == 0) & ~new
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
