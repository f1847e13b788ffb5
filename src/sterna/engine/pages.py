"""Pages of the KV cache, and states of recurrent layers: which sequences have which, and what is
free."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from collections.abc import Sequence as SequenceOf
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.sequence import (
    BARE,
    NO_PAGES,
    PAGE,
    Sequence,
    has_pages,
    pages_of,
    plan,
    states_of,
)
from sterna.engine.windows import Held, PageShape, Resident
from sterna.errors import RequestError
from sterna.runtime import is_inside

if TYPE_CHECKING:
    from sterna.engine.prefix import PrefixCache

__all__ = ["PagePool", "PagesMissing"]

I32 = npt.NDArray[np.int32]


class PagesMissing(RequestError):
    """Too few pages are free for a step."""


class PagePool:
    """Pages of which each is free, one sequence's, or shared by several.

    There is no list of free pages and no count of a page's holders, which an interrupt could leave
    at odds with what sequences have: both follow from the living sequences. So a page is taken,
    shared, and given back by the one assignment of an array to `Sequence.pages`, and also given
    back where its sequence is forgotten. Counting takes one pass over the pages, once a step that
    needs some.

    A page that several have is not written: who is about to write gets one of its own first, with
    what it has in common with the others copied (`reserve`).

    The state of a recurrent model's sequence, and each snapshot of one, counts as `state_pages`
    pages: fewer of these are free by so many. A state cannot be taken back to an earlier position,
    so a sequence can only be cut or shared where there is a snapshot, or where its state is.

    Behind windows, pages are given back (`give_back`): whole where every layer has a window, else
    their part of the layers that have one. A sequence can be cut or shared where the windows of
    what follows need no such part. So there are more pages than bytes for whole ones, and what is
    free is counted in bytes, and told in whole pages.
    """

    def __init__(
        self, count: int, copy_page: Callable[[int, int], None], state_bytes: int = 0,
        state_pages: int = 0, shape: PageShape | None = None, ids: int | None = None,
        release: Callable[[int, int, bool], None] | None = None,
    ) -> None:  # fmt: skip
        """`count`: whole pages that there is room for; `copy_page`: writes what the first holds to
        the second; `state_bytes`: of a state, 0 for a model without recurrent layers; `shape`: what
        pages are; `ids`: how many can be named; `release`: as of `Resident`."""
        self.count, self.state_bytes, self.state_pages = count, state_bytes, state_pages
        self.shape = shape or PageShape()
        self.ids = count if ids is None else ids
        self._copy_page, self._resident = copy_page, Resident(self.shape, self.ids, release)
        # The keys are ids, and a new sequence may have that of a forgotten one. A WeakSet that is
        # interrupted where its iteration begins never again drops what is forgotten.
        self._sequences: dict[int, weakref.ref[Sequence]] = {}
        # Nobody else takes pages that this thread has seen free. The collector may run within, and
        # with it what ends a request that was forgotten.
        self._lock = threading.RLock()
        #: Pages of earlier sequences; it gives way where sequences need them.
        self.cache: PrefixCache | None = None

    @property
    def free(self) -> int:
        """How many whole pages are free, or only kept by the cache, which gives way."""
        with self._lock:
            return self._free(self._counted(), self._states())

    def holders(self) -> npt.NDArray[np.int64]:
        """How many sequences have each page."""
        with self._lock:
            return self._counted().pages

    def _free(self, held: Held, states: int) -> int:
        """How many pages are free, where those that are held and so many states are not."""
        room = self._room(states) - self.shape.bytes_of(held)
        return min(room // self.shape.page_bytes, self.ids - int(np.count_nonzero(held.pages)))

    def _room(self, states: int) -> int:
        """Bytes for pages, beside so many states."""
        return (self.count - states * self.state_pages) * self.shape.page_bytes

    def reserve(self, wanted: SequenceOf[tuple[Sequence, int]]) -> None:
        """Lets each sequence write so many positions behind those that it has.

        It gets the pages that it lacks, and its own in place of shared ones that it would write.
        And its state is that of its length, or any where that is 0. RequestError where too few are
        free, or where there is no such state; then none gets any.
        """
        wanted = [one for one in wanted if not self._is_ready(*one)]
        if not wanted:
            return
        missing = self._take(wanted)
        if missing:
            # What an exception's frames hold may be a cycle, and lives until it is collected.
            gc.collect()
            missing = self._take(wanted)
        if missing:
            raise PagesMissing(
                f"KV cache: a sequence must fit the free ones of {self.count} pages, but "
                f"{missing} are missing; run fewer sequences at once, or raise kv_bytes"
            )

    def _is_ready(self, sequence: Sequence, count: int) -> bool:
        """Whether it may write so many more positions as it is, for certain."""
        state = sequence.state
        current = not self.state_bytes or (
            state is not None and (not sequence.length or state.position == sequence.length)
        )
        return count == 0 or (current and has_pages(sequence, count))

    def _state_of(self, sequence: Sequence) -> _native.State | None:
        """The state or snapshot of its length; None where it needs none. RequestError."""
        if not self.state_bytes or not sequence.length:
            return None
        for state in states_of(sequence):
            if state.position == sequence.length:
                return state
        raise RequestError(
            f"sequence: its recurrent state must be of its {sequence.length} positions, but a step "
            "that did not end left it of others; rewind the sequence"
        )

    def _give_state(self, sequence: Sequence, source: _native.State | None) -> None:
        """A state of its own that is equal to the source; any state where there is none."""
        state = sequence.state or _native.State(self.state_bytes)
        if source is not None and source is not state:
            state.copy_from(source)
        sequence.state = state

    def give_back(self, sequence: Sequence) -> None:
        """What lies before the windows of all positions from its length on, and that no mark
        needs."""
        gone = self.shape.before(sequence.length - self.shape.back)
        if gone and 0 <= sequence.pages[gone - 1] < BARE:
            self._strip(sequence)

    def _strip(self, sequence: Sequence) -> None:
        points = (*sequence.marks, sequence.length)
        sequence.pages = self.shape.stripped(sequence.pages, points)

    def snapshot(self, sequence: Sequence, keep: int) -> bool:
        """Adds a copy of its state, the latest of at most `keep` snapshots; older ones go first.

        Nothing, and True, where it has one of its length or needs none; False where too few pages
        are free, or where its state is of another length. Where layers have windows, it adds a
        mark, of which as many are kept, until its own next step lacks pages.
        """
        if not sequence.length:
            return True
        if self.shape.window is not None and keep > 0:
            earlier = (m for m in sequence.marks if m < sequence.length)
            sequence.marks = (*earlier, sequence.length)[-keep:]
            self._strip(sequence)
        if not self.state_bytes:
            return True
        with self._lock:
            kept = tuple(s for s in sequence.snapshots if s.position <= sequence.length)
            if any(s.position == sequence.length for s in kept):
                return True
            state = sequence.state
            if keep < 1 or state is None or state.position != sequence.length:
                return False
            sequence.snapshots = kept[max(0, len(kept) + 1 - keep) :]
            if not self._has_room_for_state():
                return False
            copy = _native.State(self.state_bytes)
            copy.copy_from(state)
            sequence.snapshots = (*sequence.snapshots, copy)
            return True

    def may_draft(self, sequence: Sequence) -> bool:
        """Whether its next step may have drafts: where layers are recurrent, it gets a state for
        these, which counts as nothing, and goes (`forget_ahead`) where pages are needed; there must
        be a page for each sequence beside it, or it would go at once."""
        if not self.state_bytes or sequence.ahead is not None:
            return True
        with self._lock:
            if not self._has_room_for_state(beside=len(self._sequences)):
                return False
            sequence.ahead = _native.State(self.state_bytes)
            return True

    def forget_ahead(self) -> bool:
        """Between steps, takes away the states for drafts; False where there are none."""
        with self._lock:
            living = [ref() for ref in self._sequences.values()]
            found = [one for one in living if one is not None and one.ahead is not None]
            for sequence in found:
                sequence.settle(sequence.length)
                sequence.ahead = None
            return bool(found)

    def reachable(self, sequence: Sequence, length: int) -> int:
        """The greatest position up to `length` that it can be cut back to, or 0."""
        if not self.state_bytes:
            return self.shape.reach(sequence.pages, length)
        known = [s.position for s in states_of(sequence) if s.position <= length]
        fitting = (p for p in known if self.shape.reach(sequence.pages, p) == p)
        return max(fitting, default=0)

    def share(self, source: Sequence, length: int) -> Sequence:
        """Another sequence that begins with the first `length` positions of this one, or with those
        that are `reachable`.

        Both have the pages of these, and no memory is copied until one of them writes the last of
        them, which they need not fill; only a state that is no snapshot is. RequestError unless the
        sequence is that long, or where no pages are free for a state.
        """
        with self._lock:
            if not 0 <= length <= source.length:
                raise RequestError(f"share: must lie in 0..{source.length}, but got {length}")
            length = max(0, self.reachable(source, length))
            pages = source.pages[: pages_of(length)]
            source.shared = max(source.shared, len(pages))
            copy = Sequence(shared=len(pages))
            copy.snapshots = tuple(s for s in source.snapshots if 0 < s.position <= length)
            copy.marks = tuple(m for m in source.marks if m <= length)
            self._sequences[id(copy)] = weakref.ref(copy)  # before it has them
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

    def cut(self, sequence: Sequence, length: int) -> int:
        """Leaves a sequence the pages of its first `length` positions, or of those that are
        `reachable`, and no more of these; how many it has then."""
        length = max(0, self.reachable(sequence, length))
        # What is of later positions first, then the length: a page too many is harmless, one too
        # few is not.
        sequence.snapshots = tuple(s for s in sequence.snapshots if 0 < s.position <= length)
        sequence.marks = tuple(m for m in sequence.marks if m <= length)
        sequence.drop_ahead(length)
        sequence.length = length
        sequence.pages = sequence.pages[: pages_of(length)]
        if not length:
            sequence.state = sequence.ahead = None
        return length

    def adopt(self, sequence: Sequence, pages: I32, length: int) -> None:
        """Lets a new sequence have pages that somebody keeps; under the lock."""
        self._sequences[id(sequence)] = weakref.ref(sequence)  # before it has them
        sequence.pages = pages
        sequence.length = length

    def spare_page(self) -> int | None:
        """A page that nobody has, for the cache, which may have to forget another; None where all
        are in use. Under the lock."""
        alone = self._counted()
        for _ in range(2):
            held, states = self._with_cache(alone), self._states(cached=True)
            if self._free(held, states) > 0:
                unused = np.flatnonzero(held.pages == 0)[:1].astype(np.int32)
                self._resident.settle(held, unused, self._room(states))
                return int(unused[0])
            if self.cache is None or self._free(alone, self._states()) <= 0:
                return None
            self.cache.give_way(1, alone)
        return None

    def _states(self, cached: bool = False) -> int:
        """How many states and snapshots the sequences that `_counted` has found alive have.

        cached: with those for drafts, and those of the cache, which all give way.
        """
        living = [ref() for ref in self._sequences.values()] if self.state_bytes else []
        known = [(one, s) for one in living if one is not None for s in states_of(one)]
        states = {id(s) for one, s in known if cached or s is not one.ahead}
        if cached and self.cache is not None and self.state_bytes:
            states.update(map(id, self.cache.states()))
        return len(states)

    def _has_room_for_state(self, beside: int = 0) -> bool:
        """Whether pages are free for one, and so many others, where the cache gives way."""
        held, need = self._counted(), self.state_pages + beside
        if self._free(held, self._states()) < need:
            return False

        def missing() -> int:
            return need - self._free(self._with_cache(held), self._states(cached=True))

        if missing() > 0 and self.cache is not None:
            self.cache.give_way(missing(), held)
        return missing() <= 0

    def _with_cache(self, held: Held) -> Held:
        """Who has each page, the cache counted as one."""
        if self.cache is None:
            return held
        cached = self.shape.counted(self.cache.held(), self.ids)
        return Held(cached.pages + held.pages, cached.parts + held.parts)

    def _counted(self) -> Held:
        living = [(key, ref, ref()) for key, ref in self._sequences.items()]
        self._sequences = {key: ref for key, ref, sequence in living if sequence is not None}
        held = [sequence.pages for _, _, sequence in living if sequence is not None]
        return self.shape.counted(np.concatenate([NO_PAGES, *held]), self.ids)

    def _take(self, wanted: SequenceOf[tuple[Sequence, int]]) -> int:
        """Gives sequences the pages and states that they lack, or none and returns how many pages
        are missing. RequestError in the middle of another one of this thread."""
        with self._lock:
            if is_inside(self, PagePool._take.__code__):  # whose pages look free
                raise RequestError(
                    "KV cache: must be used between steps, but a signal handler uses it in the "
                    "middle of one; let it set a flag, and compute later"
                )
            sources = [self._state_of(sequence) for sequence, _ in wanted]
            states = self.state_pages * sum(sequence.state is None for sequence, _ in wanted)
            alone = self._counted()
            held, room, plans, need = self._planned(wanted, alone)
            if need + states > room and self.cache is not None:
                self.cache.give_way(need + states - room, alone)
                # Nobody copies what the cache has forgotten.
                held, room, plans, need = self._planned(wanted, alone)
            if need + states > room and any(sequence.marks for sequence, _ in wanted):
                for sequence, _ in wanted:
                    sequence.marks = ()
                    self._strip(sequence)
                held, room, plans, need = self._planned(wanted, self._counted())
            if need + states > room:
                return need + states - room
            unused: I32 = np.flatnonzero(held.pages == 0)[:need].astype(np.int32)
            self._resident.settle(held, unused, self._room(self._states(cached=True)))
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
        self, wanted: SequenceOf[tuple[Sequence, int]], alone: Held
    ) -> tuple[Held, int, list[tuple[list[int], int]], int]:
        """Who has what, the pages that are free, which ones each needs, and how many in all."""
        held = self._with_cache(alone)
        return held, self._free(held, self._states(cached=True)), *_plans(wanted, held.pages)

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


def _plans(
    wanted: SequenceOf[tuple[Sequence, int]], held: npt.NDArray[np.int64]
) -> tuple[list[tuple[list[int], int]], int]:
    """`plan` of each, one after the other, and how many pages they need in all."""
    held = held.copy()
    plans = [plan(sequence, count, held) for sequence, count in wanted]
    return plans, sum(len(replaced) + added for replaced, added in plans)
