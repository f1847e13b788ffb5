"""`TokenMasks`: which tokens may come next, computed while the step that needs them runs.

Masks depend only on the tokens before, and a step needs them only at its end, when it samples. So a
thread fills them while the layers run; llguidance and the core both release the GIL.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna import _native

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

__all__ = ["TokenMasks", "make_in_background"]

I32 = npt.NDArray[np.int32]

#: Threads that fill masks: the number of engines with steps at the same time.
WORKERS = 4
#: By process id: a child made by fork() has none of its parent's threads.
_workers: dict[int, ThreadPoolExecutor] = {}


class TokenMasks:
    """Masks of the rows of a step: `words`, int32 [rows, words of 32 tokens], one bit a token, the
    lowest bit of a word first.

    fill: writes the words and returns how many rows are right; the tokens drawn from later rows do
    not count. If it raises, the exception is kept as `error` and all tokens are allowed.
    """

    def __init__(self, rows: int, words: int, fill: Callable[[I32], int]) -> None:
        self.words: I32 = np.zeros((rows, words), np.int32)
        self.right: int = rows
        self.error: Exception | None = None
        self._fill = fill
        self._begun, self._done = threading.Lock(), threading.Event()

    def make(self) -> None:
        """Fill the masks, unless that has begun or was given up; raises nothing."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self.right = self._fill(self.words)
        except Exception as error:
            self.words[:] = -1
            self.error = error
        finally:
            self._done.set()

    def check(self) -> None:
        """Return once the masks are filled; raises the error of filling them, if any."""
        self.make()
        self._done.wait()
        if self.error is not None:
            raise self.error

    def cancel(self) -> None:
        """Return once nothing fills the masks any more: their step failed or never came."""
        if self._begun.acquire(blocking=False):
            self._done.set()
        self._done.wait()


def make_in_background(several: Sequence[TokenMasks], thread: bool) -> _native.Gate | None:
    """Fill masks on a thread, and return a gate that opens once they are filled.

    Returns None if there is nothing to wait for: no masks, or `thread` is False and the caller's
    thread has filled them.
    """
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
    from concurrent.futures import ThreadPoolExecutor

    process = os.getpid()
    if process not in _workers:
        _workers.setdefault(process, ThreadPoolExecutor(WORKERS, "sterna-masks"))
    return _workers[process]
