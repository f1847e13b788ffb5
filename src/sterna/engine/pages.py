"""Pages of the KV cache: which sequences have which, how many there are, and which are free."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import RequestError
from sterna.runtime import available_bytes, checked_whole

__all__ = ["PAGE", "PagePool", "Sequence", "page_counts"]

I32 = npt.NDArray[np.int32]

PAGE: int = _native.page_positions
NO_PAGES: I32 = np.zeros(0, np.int32)

#: Sequences of full context that a pool holds at least, where no budget is set.
LEAST_CONTEXTS = 8
#: Share of the available memory that pages may fill, where no budget is set and that is more.
SHARE = 4
#: Pages beyond which a pool does not grow by itself: to count who holds which takes about 1 ns for
#: each page, and a step of a batch counts once.
MOST_PAGES = 1 << 14


@dataclass(eq=False)
class Sequence:
    """Tokens computed so far and the pages that hold their keys and values.

    shared: of its first pages, how many another sequence may have as well; the rest are its own.
    rows_rescored: rows of an exact head that were computed for it after screening, or without;
    head_bytes: bytes read of the head in the steps that gave it logits.
    """

    length: int = 0
    shared: int = 0
    rows_rescored: int = 0
    head_bytes: int = 0
    pages: I32 = field(default_factory=lambda: NO_PAGES)


def pages_of(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)


def page_counts(context: int, page_bytes: int, budget: int | None) -> tuple[int, ...]:
    """Pages for sequences of `context` positions: as a budget in bytes has them, or by themselves.

    A page takes address space at once and memory when it is first written. So a pool without a
    budget may be large: it has room for LEAST_CONTEXTS full contexts whatever the memory, as short
    sequences never fill theirs, and for more where a share of the memory that is available now
    holds more. Several counts are to be tried in turn, as a system may grant less address space.
    RequestError for a budget that holds no page.
    """
    if budget is not None:
        most = page_bytes * np.iinfo(np.int32).max
        checked_whole("kv_bytes", budget, page_bytes, most, " for this model")
        return (budget // page_bytes,)
    least = LEAST_CONTEXTS * pages_of(context)
    share = min(available_bytes() // SHARE // page_bytes, MOST_PAGES)
    return (share, least) if share > least else (least,)


class PagePool:
    """Pages of which each is free, one sequence's, or shared by several.

    There is no list of free pages and no count of a page's holders, which an interrupt could leave
    at odds with what sequences have: both follow from the living sequences. So a page is taken,
    shared, and given back by the one assignment of an array to `Sequence.pages`, and also given
    back where its sequence is forgotten. Counting takes one pass over the pages, once a step that
    needs some.

    A page that several have is not written: who is about to write gets one of its own first, with
    what it has in common with the others copied (`reserve`).
    """

    def __init__(self, count: int, copy_page: Callable[[int, int], None]) -> None:
        """`count`: how many there are; `copy_page`: writes what the first holds to the second."""
        self.count = count
        self._copy_page = copy_page
        # The keys are ids, and a new sequence may have that of a forgotten one. A WeakSet that is
        # interrupted where its iteration begins never again drops what is forgotten.
        self._sequences: dict[int, weakref.ref[Sequence]] = {}
        self._lock = threading.Lock()  # nobody else takes pages that this thread has seen free

    @property
    def free(self) -> int:
        """How many pages are free."""
        return self.count - int(np.count_nonzero(self.holders()))

    def holders(self) -> npt.NDArray[np.int64]:
        """How many sequences have each page."""
        with self._lock:
            return self._counted()

    def reserve(self, wanted: SequenceOf[tuple[Sequence, int]]) -> None:
        """Lets each sequence write so many positions behind those that it has.

        It gets the pages that it lacks, and its own in place of shared ones that it would write.
        RequestError where too few are free; then none gets any.
        """
        wanted = [one for one in wanted if not _is_ready(*one)]
        if not wanted:
            return
        missing = self._take(wanted)
        if missing:
            # What an exception's frames hold may be a cycle, and lives until it is collected.
            gc.collect()
            missing = self._take(wanted)
        if missing:
            raise RequestError(
                f"KV cache: a sequence must fit the free ones of {self.count} pages, but "
                f"{missing} are missing; run fewer sequences at once, or raise kv_bytes"
            )

    def share(self, source: Sequence, length: int) -> Sequence:
        """Another sequence that begins with the first `length` positions of this one.

        Both have the pages of these, and no memory is copied until one of them writes the last of
        them, which `length` need not fill. RequestError unless the sequence is that long.
        """
        with self._lock:
            if not 0 <= length <= source.length:
                raise RequestError(f"share: must lie in 0..{source.length}, but got {length}")
            pages = source.pages[: pages_of(length)]
            source.shared = max(source.shared, len(pages))
            copy = Sequence(shared=len(pages))
            self._sequences[id(copy)] = weakref.ref(copy)  # before it has them
            copy.pages = pages
            copy.length = length
            return copy

    def cut(self, sequence: Sequence, length: int) -> None:
        """Leaves a sequence the pages of its first `length` positions, and no more of these."""
        # The length first: a page too many is harmless, one too few is not.
        sequence.length = length
        sequence.pages = sequence.pages[: pages_of(length)]

    def _counted(self) -> npt.NDArray[np.int64]:
        living = [(key, ref, ref()) for key, ref in self._sequences.items()]
        self._sequences = {key: ref for key, ref, sequence in living if sequence is not None}
        held = [sequence.pages for _, _, sequence in living if sequence is not None]
        return np.bincount(np.concatenate([NO_PAGES, *held]), minlength=self.count)

    def _take(self, wanted: SequenceOf[tuple[Sequence, int]]) -> int:
        """Gives sequences the pages that they lack, or none and returns how many are missing."""
        with self._lock:
            held = self._counted()
            plans = [_plan(sequence, count, held) for sequence, count in wanted]
            need = sum(len(replaced) + added for replaced, added in plans)
            unused = np.flatnonzero(held == 0)[:need].astype(np.int32)
            if need == len(unused):
                for (sequence, _), (replaced, added) in zip(wanted, plans, strict=True):
                    count = len(replaced) + added
                    self._give(sequence, replaced, unused[:count])
                    unused = unused[count:]
                return 0
            return need - len(unused)

    def _give(self, sequence: Sequence, replaced: list[int], taken: I32) -> None:
        """Pages in place of some, and behind the last."""
        pages = np.concatenate([sequence.pages, taken[len(replaced) :]])
        for i, page in zip(replaced, taken, strict=False):
            if i * PAGE < sequence.length:  # the part that it goes on from
                self._copy_page(int(pages[i]), int(page))
            pages[i] = page
        self._sequences[id(sequence)] = weakref.ref(sequence)  # before it has them
        sequence.pages = pages
        sequence.shared = min(sequence.shared, sequence.length // PAGE)


def _is_ready(sequence: Sequence, count: int) -> bool:
    """Whether it has all pages of so many more positions to itself, for certain."""
    end = pages_of(sequence.length + count)
    unshared = sequence.shared <= sequence.length // PAGE
    return count == 0 or (unshared and end <= len(sequence.pages))


def _plan(sequence: Sequence, count: int, held: npt.NDArray[np.int64]) -> tuple[list[int], int]:
    """Which of its pages must be replaced before so many positions are written, and how many added.

    `held` then counts as if the others were alone with what is replaced.
    """
    first = sequence.length // PAGE
    mine = sequence.pages[first : sequence.shared]
    replaced = np.flatnonzero(held[mine] > 1)
    held[mine[replaced]] -= 1
    added = pages_of(sequence.length + count) - len(sequence.pages)
    return (replaced + first).tolist(), max(0, added)
