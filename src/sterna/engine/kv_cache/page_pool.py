"""`PagePool`: which sequences have which pages of the KV cache, and which are free."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.kv_cache.page_plans import PageCache, has_pages, plans
from sterna.engine.kv_cache.sequence import BARE, NO_PAGES, PAGE, Sequence, pages_of, states_of
from sterna.engine.kv_cache.sliding_windows import PageShape, RefCounts, ResidentPages
from sterna.errors import RequestError
from sterna.runtime import is_inside

__all__ = ["PagePool", "PagesMissing"]

I32 = npt.NDArray[np.int32]


class PagesMissing(RequestError):
    """Raised if too few pages are free for a step."""


class PagePool:
    """Pages of the KV cache: each is free, or belongs to one sequence or to several.

    Neither a free list nor reference counts are stored, since an interrupt could leave them at odds
    with the sequences. Both are counted from the page tables of living sequences (`ref_counts`), in
    one pass, once a step that needs pages. So a single assignment to `Sequence.pages` takes, shares
    or frees pages, and a forgotten sequence frees its own.

    A shared page is never written: a sequence that is about to write to one first gets a copy of
    its own (`reserve`).

    The recurrent state of a sequence, and each snapshot of it, counts as `state_pages` pages. A
    state cannot go back, so a sequence can only be truncated or forked at a snapshot or at its
    state.

    Pages before sliding windows are freed (`free_unseen`): whole if every layer has a window, else
    only the part of the layers that have one. A sequence can be truncated or forked at lengths
    whose windows need no freed part. So there are more page ids than whole pages that fit; free
    memory is counted in bytes, and reported in whole pages.
    """

    def __init__(
        self,
        count: int,
        copy_page: Callable[[int, int], None],
        state_bytes: int = 0,
        state_pages: int = 0,
        shape: PageShape | None = None,
        ids: int | None = None,
        release: Callable[[int, int, bool], None] | None = None,
    ) -> None:
        """count: whole pages that there is room for; copy_page: copies one page to another;
        state_bytes: size of a recurrent state, or 0; state_pages: pages that it counts as; shape:
        shape of pages; ids: page ids, default `count`; release: as in `ResidentPages`."""
        self.count = count
        self.state_bytes = state_bytes
        self.state_pages = state_pages
        self.shape: PageShape = shape or PageShape()
        self.ids: int = count if ids is None else ids
        self._copy_page, self._resident = copy_page, ResidentPages(self.shape, self.ids, release)
        # Keys are id(sequence); a new sequence may reuse a forgotten one's id. Not a WeakSet:
        # interrupted at the begin of an iteration, it never again drops forgotten members.
        self._sequences: dict[int, weakref.ref[Sequence]] = {}
        #: Held while pages are counted and handed out, by the pool and by its prefix cache.
        #: Reentrant, since the garbage collector may end a forgotten request within.
        self.lock: threading.RLock = threading.RLock()
        #: The prefix cache, which gives up pages when sequences need them.
        self.cache: PageCache | None = None

    @property
    def free(self) -> int:
        """How many whole pages are free, those that only the prefix cache keeps included."""
        with self.lock:
            return self._free(self._counted(), self._states())

    def ref_counts(self) -> npt.NDArray[np.int64]:
        """Return how many sequences have each page, int64 [ids]."""
        with self.lock:
            return self._counted().pages

    def _free(self, counts: RefCounts, states: int) -> int:
        """Return how many pages are free, given reference counts and the number of states."""
        room = self._room(states) - self.shape.bytes_of(counts)
        return min(room // self.shape.page_bytes, self.ids - int(np.count_nonzero(counts.pages)))

    def _room(self, states: int) -> int:
        """Return the bytes that states leave for pages."""
        return (self.count - states * self.state_pages) * self.shape.page_bytes

    def reserve(self, wanted: SequenceOf[tuple[Sequence, int]]) -> None:
        """Prepare all sequences to write this many new positions each, or none of them.

        A sequence gets the pages that it lacks, copies of shared pages that it would write, and a
        recurrent state of its length. Raises PagesMissing if too few pages are free, RequestError
        if there is no such state.
        """
        wanted = [one for one in wanted if not self._is_ready(*one)]
        if not wanted:
            return
        missing = self._take(wanted)
        if missing:
            # An exception's frames may keep sequences in a cycle until that is collected.
            gc.collect()
            missing = self._take(wanted)
        if missing:
            raise PagesMissing(
                f"KV cache: a sequence must fit the free ones of {self.count} pages, but "
                f"{missing} are missing; run fewer sequences at once, or raise kv_bytes"
            )

    def _is_ready(self, sequence: Sequence, count: int) -> bool:
        """Whether a sequence can write this many positions without further pages."""
        state = sequence.state
        current = not self.state_bytes or (
            state is not None and (not sequence.length or state.position == sequence.length)
        )
        return count == 0 or (current and has_pages(sequence, count))

    def _state_of(self, sequence: Sequence) -> _native.State | None:
        """Return its state or snapshot of its length, None if it needs none."""
        if not self.state_bytes or not sequence.length:
            return None
        for state in states_of(sequence):
            if state.position == sequence.length:
                return state
        raise RequestError(
            f"sequence: its recurrent state must have its {sequence.length} positions, but an "
            "interrupted step left it with others; rewind the sequence"
        )

    def _give_state(self, sequence: Sequence, source: _native.State | None) -> None:
        """Give a sequence a state of its own, a copy of the source if there is one."""
        state = sequence.state or _native.State(self.state_bytes)
        if source is not None and source is not state:
            state.copy_from(source)
        sequence.state = state

    def free_unseen(self, sequence: Sequence) -> None:
        """Free pages that no later position and no rewind point needs."""
        gone = self.shape.before(sequence.length - self.shape.back)
        if gone and 0 <= sequence.pages[gone - 1] < BARE:
            self._strip(sequence)

    def _strip(self, sequence: Sequence) -> None:
        points = (*sequence.rewind_points, sequence.length)
        sequence.pages = self.shape.without_unseen(sequence.pages, points)

    def snapshot(self, sequence: Sequence, keep: int) -> bool:
        """Add a snapshot of its recurrent state, the latest of at most `keep`; older ones go first.

        Returns True if there is one of its length then, or if it needs none; False if too few pages
        are free, or its state is of another length. With windows, it adds a rewind point; at most
        `keep` are kept, until the sequence's own next step lacks pages.
        """
        if not sequence.length:
            return True
        if self.shape.window is not None and keep > 0:
            earlier = (m for m in sequence.rewind_points if m < sequence.length)
            sequence.rewind_points = (*earlier, sequence.length)[-keep:]
            self._strip(sequence)
        if not self.state_bytes:
            return True
        with self.lock:
            snapshots = tuple(s for s in sequence.snapshots if s.position <= sequence.length)
            if any(s.position == sequence.length for s in snapshots):
                return True
            state = sequence.state
            if keep < 1 or state is None or state.position != sequence.length:
                return False
            sequence.snapshots = snapshots[max(0, len(snapshots) + 1 - keep) :]
            if not self._has_room_for_state():
                return False
            copy = _native.State(self.state_bytes)
            copy.copy_from(state)
            sequence.snapshots = (*sequence.snapshots, copy)
            return True

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether its next step may have drafts; with recurrent layers, give it a state for them.

        Such a state counts as no page, and goes when pages are needed (`drop_draft_states`). It is
        given only if one more page per sequence is free, or the next step would drop it.
        """
        if not self.state_bytes or sequence.draft_state is not None:
            return True
        with self.lock:
            if not self._has_room_for_state(more_pages=len(self._sequences)):
                return False
            sequence.draft_state = _native.State(self.state_bytes)
            return True

    def drop_draft_states(self) -> bool:
        """Between steps, drop the states for drafts; returns whether there were any."""
        with self.lock:
            living = [ref() for ref in self._sequences.values()]
            drafting = [one for one in living if one is not None and one.draft_state is not None]
            for sequence in drafting:
                sequence.roll_back(sequence.length)
                sequence.draft_state = None
            return bool(drafting)

    def reachable(self, sequence: Sequence, length: int) -> int:
        """Return the longest length up to `length` that it can be truncated to."""
        if not self.state_bytes:
            return self.shape.reach(sequence.pages, length)
        known = [s.position for s in states_of(sequence) if s.position <= length]
        fitting = (p for p in known if self.shape.reach(sequence.pages, p) == p)
        return max(fitting, default=0)

    def fork(self, source: Sequence, length: int) -> Sequence:
        """Return a new sequence that shares the first `length` positions, or the `reachable` ones.

        Nothing is copied until one of them writes to the last shared page, except a recurrent state
        that is no snapshot. Raises RequestError if the source is shorter, or if no pages are free
        for a state.
        """
        with self.lock:
            if not 0 <= length <= source.length:
                raise RequestError(f"share: must lie in 0..{source.length}, but got {length}")
            length = max(0, self.reachable(source, length))
            pages = source.pages[: pages_of(length)]
            source.shared = max(source.shared, len(pages))
            copy = Sequence(shared=len(pages))
            copy.snapshots = tuple(s for s in source.snapshots if 0 < s.position <= length)
            copy.rewind_points = tuple(m for m in source.rewind_points if m <= length)
            self._sequences[id(copy)] = weakref.ref(copy)  # before it has pages
            if length and self.state_bytes and all(s.position < length for s in copy.snapshots):
                if not self._has_room_for_state():
                    raise RequestError(
                        f"KV cache: a recurrent state takes {self.state_pages} of {self.count} "
                        "pages, but fewer are free; run fewer sequences at once, or raise kv_bytes"
                    )
                here = (s for s in states_of(source) if s.position == length)
                self._give_state(copy, next(here))
            copy.pages = pages
            copy.length = length
            return copy

    def truncate(self, sequence: Sequence, length: int) -> int:
        """Truncate a sequence to `length`, or to the `reachable` length; returns its new length."""
        length = max(0, self.reachable(sequence, length))
        # Drop state of later positions, then set the length, then cut pages: a surplus page is
        # harmless, a missing one is not.
        sequence.snapshots = tuple(s for s in sequence.snapshots if 0 < s.position <= length)
        sequence.rewind_points = tuple(m for m in sequence.rewind_points if m <= length)
        sequence.drop_draft_state(length)
        sequence.length = length
        sequence.pages = sequence.pages[: pages_of(length)]
        if not length:
            sequence.state = sequence.draft_state = None
        return length

    def adopt(self, sequence: Sequence, pages: I32, length: int) -> None:
        """Give a new sequence pages that the prefix cache keeps; under the lock."""
        self._sequences[id(sequence)] = weakref.ref(sequence)  # before it has pages
        sequence.pages = pages
        sequence.length = length

    def spare_page(self) -> int | None:
        """Return a free page for the prefix cache, which may have to give up another.

        None if all are in use. Call it under the lock.
        """
        of_sequences = self._counted()
        for _ in range(2):
            counts, states = self._with_cache(of_sequences), self._states(cached=True)
            if self._free(counts, states) > 0:
                unused = np.flatnonzero(counts.pages == 0)[:1].astype(np.int32)
                self._resident.update(counts, unused, self._room(states))
                return int(unused[0])
            if self.cache is None or self._free(of_sequences, self._states()) <= 0:
                return None
            self.cache.evict(1, of_sequences)
        return None

    def _states(self, cached: bool = False) -> int:
        """Return how many states and snapshots living sequences have.

        cached: count states for drafts and those of the prefix cache, too, which can be dropped.
        """
        living = [ref() for ref in self._sequences.values()] if self.state_bytes else []
        known = [(one, s) for one in living if one is not None for s in states_of(one)]
        states = {id(s) for one, s in known if cached or s is not one.draft_state}
        if cached and self.cache is not None and self.state_bytes:
            states.update(map(id, self.cache.states()))
        return len(states)

    def _has_room_for_state(self, more_pages: int = 0) -> bool:
        """Make room for a state and `more_pages`, or return False; evicts cached prefixes."""
        counts, need = self._counted(), self.state_pages + more_pages
        if self._free(counts, self._states()) < need:
            return False

        def missing() -> int:
            return need - self._free(self._with_cache(counts), self._states(cached=True))

        if missing() > 0 and self.cache is not None:
            self.cache.evict(missing(), counts)
        return missing() <= 0

    def _with_cache(self, of_sequences: RefCounts) -> RefCounts:
        """Return reference counts in which the prefix cache counts as one more sequence."""
        if self.cache is None:
            return of_sequences
        cached = self.shape.counted(self.cache.page_ids(), self.ids)
        return RefCounts(cached.pages + of_sequences.pages, cached.parts + of_sequences.parts)

    def _counted(self) -> RefCounts:
        living = [(key, ref, ref()) for key, ref in self._sequences.items()]
        self._sequences = {key: ref for key, ref, sequence in living if sequence is not None}
        tables = [sequence.pages for _, _, sequence in living if sequence is not None]
        return self.shape.counted(np.concatenate([NO_PAGES, *tables]), self.ids)

    def _take(self, wanted: SequenceOf[tuple[Sequence, int]]) -> int:
        """Give sequences the pages and states that they lack, or return how many pages are missing.

        Raises RequestError inside another call of this thread, that is, from a signal handler.
        """
        with self.lock:
            if is_inside(self, PagePool._take.__code__):  # its pages still look free
                raise RequestError(
                    "KV cache: must be used between steps, but a signal handler uses it in the "
                    "middle of one; let it set a flag, and compute later"
                )
            sources = [self._state_of(sequence) for sequence, _ in wanted]
            states = self.state_pages * sum(sequence.state is None for sequence, _ in wanted)
            of_sequences = self._counted()
            counts, room, plans, need = self._planned(wanted, of_sequences)
            if need + states > room and self.cache is not None:
                self.cache.evict(need + states - room, of_sequences)
                # Pages that the cache has evicted need no copy.
                counts, room, plans, need = self._planned(wanted, of_sequences)
            if need + states > room and any(sequence.rewind_points for sequence, _ in wanted):
                for sequence, _ in wanted:
                    sequence.rewind_points = ()
                    self._strip(sequence)
                counts, room, plans, need = self._planned(wanted, self._counted())
            if need + states > room:
                return need + states - room
            unused: I32 = np.flatnonzero(counts.pages == 0)[:need].astype(np.int32)
            self._resident.update(counts, unused, self._room(self._states(cached=True)))
            for (sequence, _), source, (replaced, added) in zip(
                wanted, sources, plans, strict=True
            ):
                count = len(replaced) + added
                self._give(sequence, replaced, unused[:count])
                unused = unused[count:]
                if self.state_bytes:
                    self._give_state(sequence, source)
            return 0

    def _planned(
        self, wanted: SequenceOf[tuple[Sequence, int]], of_sequences: RefCounts
    ) -> tuple[RefCounts, int, list[tuple[list[int], int]], int]:
        """Return reference counts, free pages, the plan of each sequence, and pages needed."""
        counts = self._with_cache(of_sequences)
        return counts, self._free(counts, self._states(cached=True)), *plans(wanted, counts.pages)

    def _give(self, sequence: Sequence, replaced: list[int], taken: I32) -> None:
        """Give a sequence pages: the first replace some of its own, the rest follow its last."""
        pages = np.concatenate([sequence.pages, taken[len(replaced) :]])
        for i, page in zip(replaced, taken, strict=False):
            if i * PAGE < sequence.length:  # positions that it keeps
                self._copy_page(int(pages[i]), int(page))
            pages[i] = page
        self._sequences[id(sequence)] = weakref.ref(sequence)  # before it has pages
        sequence.pages = pages
        sequence.shared = min(sequence.shared, sequence.length // PAGE)
