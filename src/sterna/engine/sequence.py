"""`Sequence`: tokens computed so far, and the pages and states that keep what later ones need."""

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
    "has_pages",
    "pages_of",
    "plan",
    "states_of",
    "without_flag",
]

I32 = npt.NDArray[np.int32]

PAGE: int = _native.page_positions
NO_PAGES: I32 = np.zeros(0, np.int32)
#: In a sequence's pages, in the place of one that was given back: no layer looks back so far.
GONE = np.int32(-1)
#: Added to a page whose part of the layers with windows was given back, where others see it still.
#: It is said in the table itself, so that one assignment changes both at once, whatever interrupts.
BARE = 1 << 30


@dataclass(eq=False)
class Sequence:
    """Tokens computed so far and the pages that hold their keys and values.

    state: what the recurrent layers of a model that has any keep of it, its own, which each step
    changes; ahead: its own, too, which a step's drafts change in place of that one; snapshots:
    copies of earlier ones, by position, which nothing changes and several sequences may have. Each
    says of how many positions it is, and is of the sequence's first ones where these are no more
    than `length`: an interrupt may leave the state behind another position.
    pages: of all its positions; those behind windows are BARE, or GONE where all layers have one.
    marks: lengths that it is to come back to, where layers have windows: what these need of the
    pages is there.
    shared: of its first pages, how many another sequence may have as well; the rest are its own.
    rows_rescored: rows of an exact head that were computed for it after screening, or without;
    head_bytes: bytes read of the head in the steps that gave it logits.
    """

    length: int = 0
    shared: int = 0
    rows_rescored: int = 0
    head_bytes: int = 0
    pages: I32 = field(default_factory=lambda: NO_PAGES)
    state: _native.State | None = None
    ahead: _native.State | None = None
    snapshots: tuple[_native.State, ...] = ()
    marks: tuple[int, ...] = ()

    def settle(self, length: int) -> None:
        """Takes back the positions from `length` on, which were drafts'; where layers are
        recurrent, those behind the last position up to there that it has a state of."""
        self.drop_ahead(length)
        states = states_of(self)
        if states:
            length = max((0, *(s.position for s in states if s.position <= length)))
        self.length = min(self.length, length)
        state, ahead = self.state, self.ahead
        if ahead is not None and ahead.position == self.length:
            self.ahead = None  # an interrupt from here on loses a state that nobody needs
            self.state = ahead
            self.ahead = state

    def drop_ahead(self, length: int) -> None:
        """What drafts made of a state is of no use where it is of more positions than `length`:
        others may take the place of these."""
        if self.ahead is not None and self.ahead.position > length:
            self.ahead.forget()


def pages_of(positions: int) -> int:
    """Pages that hold so many positions."""
    return -(-positions // PAGE)


def states_of(sequence: Sequence) -> list[_native.State]:
    """Its state, its snapshots, and the state of its drafts."""
    states = (sequence.state, *sequence.snapshots, sequence.ahead)
    return [s for s in states if s is not None]


def without_flag(pages: I32) -> I32:
    """The pages themselves, of such as are there."""
    return np.asarray(pages & (BARE - 1))


def are_whole(pages: I32) -> npt.NDArray[np.bool_]:
    """Which of them are there for all layers."""
    return np.asarray((pages >= 0) & (pages < BARE))


def has_pages(sequence: Sequence, count: int) -> bool:
    """Whether it has all pages of so many more positions to itself, for certain."""
    first, end = sequence.length // PAGE, pages_of(sequence.length + count)
    if sequence.shared > first or end > len(sequence.pages):
        return False
    return first == end or bool(0 <= sequence.pages[first] < BARE)


def plan(sequence: Sequence, count: int, held: npt.NDArray[np.int64]) -> tuple[list[int], int]:
    """Which of its pages must be replaced before so many positions are written, and how many added.

    `held` then counts as if the others were alone with what is replaced.
    """
    first = sequence.length // PAGE
    # An interrupt may leave a sequence that was cut to 0 with places whose pages are gone.
    gone = ~are_whole(sequence.pages[first:])
    mine = sequence.pages[first : sequence.shared]
    shared = np.flatnonzero(are_whole(mine))
    shared = shared[held[mine[shared]] > 1]
    held[mine[shared]] -= 1
    gone[shared] = True
    added = pages_of(sequence.length + count) - len(sequence.pages)
    return (np.flatnonzero(gone) + first).tolist(), max(0, added)
