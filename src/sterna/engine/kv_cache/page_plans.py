"""Which pages sequences need before they write, and which pages stay for later sequences."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Protocol

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.kv_cache.sequence import BARE, PAGE, Sequence, are_whole, pages_of
from sterna.engine.kv_cache.sliding_windows import RefCounts

__all__ = ["PageCache", "has_pages", "plans"]

I32 = npt.NDArray[np.int32]


class PageCache(Protocol):
    """Pages that are kept for later sequences, and that the pool takes back on demand.

    The pool calls these methods while it holds its lock.
    """

    def page_ids(self) -> I32:
        """Return the pages that are kept, int32."""
        ...

    def states(self) -> Iterable[_native.State]:
        """Return the recurrent states that are kept."""
        ...

    def evict(self, missing: int, counts: RefCounts) -> None:
        """Give up pages until `missing` more are free.

        counts: how many sequences have each page.
        """
        ...


def has_pages(sequence: Sequence, count: int) -> bool:
    """Whether it is certain that no other sequence shares the pages of this many new positions."""
    first, end = sequence.length // PAGE, pages_of(sequence.length + count)
    if sequence.shared > first or end > len(sequence.pages):
        return False
    return first == end or bool(0 <= sequence.pages[first] < BARE)


def _plan(sequence: Sequence, count: int, counts: npt.NDArray[np.int64]) -> tuple[list[int], int]:
    """Return the indices of pages to replace before this many positions are written, and how many
    to add.

    counts: reference counts; replaced pages are subtracted.
    """
    first = sequence.length // PAGE
    # An interrupt may leave a sequence that was truncated to 0 with pages that are GONE.
    gone = ~are_whole(sequence.pages[first:])
    mine = sequence.pages[first : sequence.shared]
    shared = np.flatnonzero(are_whole(mine))
    shared = shared[counts[mine[shared]] > 1]
    counts[mine[shared]] -= 1
    gone[shared] = True
    added = pages_of(sequence.length + count) - len(sequence.pages)
    return (np.flatnonzero(gone) + first).tolist(), max(0, added)


def plans(
    wanted: SequenceOf[tuple[Sequence, int]], counts: npt.NDArray[np.int64]
) -> tuple[list[tuple[list[int], int]], int]:
    """Return the plan of each sequence, in turn, and how many pages they need in all."""
    counts = counts.copy()
    made = [_plan(sequence, count, counts) for sequence, count in wanted]
    return made, sum(len(replaced) + added for replaced, added in made)
