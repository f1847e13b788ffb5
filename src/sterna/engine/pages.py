"""Pages of the KV cache: which sequence has which, and which are free."""

from __future__ import annotations

import threading
import weakref
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sterna import _native

__all__ = ["PAGE", "PagePool", "Sequence"]

I32 = npt.NDArray[np.int32]

PAGE: int = _native.page_positions


@dataclass(eq=False)
class Sequence:
    """Tokens computed so far and the pages that hold their keys and values.

    rows_rescored: rows of an exact head that were computed for it after screening, or without;
    head_bytes: bytes read of the head in the steps that gave it logits.
    """

    length: int = 0
    rows_rescored: int = 0
    head_bytes: int = 0
    pages: I32 = field(default_factory=lambda: np.zeros(0, np.int32))


class PagePool:
    """Pages of which each is free or some sequence's; a page that several share is theirs.

    There is no list of free pages, which an interrupt could leave at odds with what sequences have:
    a page is free if no living sequence has it. So a page is taken, and given back, by the one
    assignment of an array to `Sequence.pages`, and also given back where its sequence is forgotten.
    """

    def __init__(self, count: int) -> None:
        """`count`: how many there are."""
        self.count = count
        self._holders: weakref.WeakSet[Sequence] = weakref.WeakSet()
        self._lock = threading.Lock()  # nobody else takes pages that this thread has seen free

    @property
    def free(self) -> int:
        """How many pages are free."""
        with self._lock:
            return len(self._unused())

    def grow(self, sequence: Sequence, count: int) -> int:
        """Gives a sequence pages until it has `count`; how many are missing: then it gets none."""
        with self._lock:
            need = count - len(sequence.pages)
            if need <= 0:
                return 0
            unused = self._unused()
            if need > len(unused):
                return need - len(unused)
            self._holders.add(sequence)  # before it has them
            sequence.pages = np.concatenate([sequence.pages, unused[:need]])
            return 0

    def cut(self, sequence: Sequence, length: int) -> None:
        """Leaves a sequence the pages of its first `length` positions, and no more of these."""
        # The length first: a page too many is harmless, one too few is not.
        sequence.length = length
        sequence.pages = sequence.pages[: -(-length // PAGE)]

    def _unused(self) -> I32:
        used = np.zeros(self.count, bool)
        for sequence in self._holders:
            used[sequence.pages] = True
        return np.flatnonzero(~used).astype(np.int32)
