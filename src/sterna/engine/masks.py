"""`Masks`: which tokens may come next, made beside the step that draws them.

They depend on the tokens before alone, and a step needs them at its end. So a thread makes them
while the layers are computed; llguidance and the core both release the GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from sterna import _native

__all__ = ["Masks", "made_beside"]

I32 = npt.NDArray[np.int32]

#: Steps of so many engines have theirs made at the same time.
WORKERS = 4
#: By process: a child made by fork() has none of its parent's threads.
_workers: dict[int, ThreadPoolExecutor] = {}


class Masks:
    """What rows of a step may draw, once it is made: `words`, int32 [rows, words of 32 tokens], a
    bit a token, the lowest of a word first.

    fill: writes the words; what it raises is the `error`, and then every token may come.
    """

    def __init__(self, rows: int, words: int, fill: Callable[[I32], None]) -> None:
        self.words: I32 = np.zeros((rows, words), np.int32)
        self.error: Exception | None = None
        self._fill = fill
        self._begun, self._done = threading.Lock(), threading.Event()

    def make(self) -> None:
        """Makes them, unless somebody has begun to, or given them up; raises nothing."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._fill(self.words)
        except Exception as error:
            self.words[:] = -1
            self.error = error
        finally:
            self._done.set()

    def check(self) -> None:
        """Returns once they are made; raises what has kept them from it."""
        self.make()
        self._done.wait()
        if self.error is not None:
            raise self.error

    def give_up(self) -> None:
        """Returns once nobody makes them, nor ever will: their step has failed, or never came."""
        if self._begun.acquire(blocking=False):
            self._done.set()
        self._done.wait()


def made_beside(several: Sequence[Masks], thread: bool) -> _native.Gate | None:
    """Has a thread make them: the gate is open once they are. None where they are already, as there
    are none, or the caller was to make them."""
    if not thread:
        for masks in several:
            masks.make()
    if not several or not thread:
        return None
    gate = _native.Gate()

    def work() -> None:
        try:
            for masks in several:
                masks.make()
        finally:
            gate.open()

    try:
        _worker().submit(work)
    except RuntimeError:  # the interpreter ends, or the system has no thread to give
        work()
    return gate


def _worker() -> ThreadPoolExecutor:
    process = os.getpid()
    if process not in _workers:
        _workers.setdefault(process, ThreadPoolExecutor(WORKERS, "sterna-masks"))
    return _workers[process]
