"""`Sequence`: the tokens computed so far, by their pages and recurrent states."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native

__all__ = [
    "BARE",
    "GONE",
    "NO_PAGES",
    "PAGE",
    "Sequence",
    "are_whole",
    "pages_of",
    "states_of",
    "without_flag",
]

I32 = npt.NDArray[np.int32]

PAGE: int = _native.page_positions
NO_PAGES: I32 = np.zeros(0, np.int32)
#: In a page table, replaces a freed page, which no layer needs any more.
GONE = np.int32(-1)
#: A flag of pages in a table: the part of sliding-window layers is freed, other layers still see
#: the page. It stands in the table so that one assignment changes both, whatever interrupts.
BARE = 1 << 30


@dataclass(eq=False)
class Sequence:
    """Tokens computed so far, and the pages that hold their keys and values.

    pages: the page table, of all positions; before windows they are BARE, or GONE if all layers
    have windows. shared: how many of the first pages another sequence may have as well.
    rewind_points: lengths that it may come back to; pages in their windows are kept.
    state: state of recurrent layers, which each step changes; draft_state: its copy, which a step's
    drafts change in its place; snapshots: earlier states, which nothing changes and several
    sequences may share. A state says of how many positions it is. One of more than `length` is
    stale: an interrupt may leave that.
    rows_rescored: rows of an exact head that were computed for it, screened or not; head_bytes:
    bytes of the head read in steps that gave it logits.
    """

    length: int = 0
    shared: int = 0
    rows_rescored: int = 0
    head_bytes: int = 0
    pages: I32 = field(default_factory=lambda: NO_PAGES)
    state: _native.State | None = None
    draft_state: _native.State | None = None
    snapshots: tuple[_native.State, ...] = ()
    rewind_points: tuple[int, ...] = ()

    def roll_back(self, length: int) -> None:
        """Drop the positions from `length` on, which were drafts.

        With recurrent layers it goes back to the last position up to `length` that has a state.
        """
        self.drop_draft_state(length)
        states = states_of(self)
        if states:
            length = max((0, *(s.position for s in states if s.position <= length)))
        self.length = min(self.length, length)
        state, drafted = self.state, self.draft_state
        if drafted is not None and drafted.position == self.length:
            self.draft_state = None  # an interrupt from here on loses a state that none needs
            self.state = drafted
            self.draft_state = state

    def drop_draft_state(self, length: int) -> None:
        """Invalidate the draft state if it is of more positions than `length`, as other tokens may
        take their place."""
        if self.draft_state is not None and self.draft_state.position > length:
            self.draft_state.forget()


def pages_of(positions: int) -> int:
    """Return the number of pages for this many positions."""
    return -(-positions // PAGE)


def states_of(sequence: Sequence) -> list[_native.State]:
    """Return the existing states of a sequence: its own, the snapshots and the draft state."""
    states = (sequence.state, *sequence.snapshots, sequence.draft_state)
    return [s for s in states if s is not None]


def without_flag(pages: I32) -> I32:
    """Return page ids without the BARE flag; none may be GONE."""
    return np.asarray(pages & (BARE - 1))


def are_whole(pages: I32) -> npt.NDArray[np.bool_]:
    """Return which pages exist for all layers, bool [pages]."""
    return np.asarray((pages >= 0) & (pages < BARE))
