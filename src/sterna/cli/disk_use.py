"""Words about weights that stay on disk: while an answer is awaited, and in the line after it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from sterna.cli.terminal import status

if TYPE_CHECKING:
    from sterna import _native
    from sterna.llm import LLM

__all__ = ["awaited", "disk_use"]

#: Seconds between two updates of the line.
UPDATE_S = 0.5
_T = TypeVar("_T")


def disk_use(llm: LLM) -> str:
    """Return how often weights were in memory since the start; empty if all of them are."""
    if llm.model.weight_cache is None:
        return ""
    counts = llm.model.weight_cache.counts
    hits, used = counts["hits"], counts["hits"] + counts["misses"]
    share = hits / used if used else 0
    return f"; weights from memory {share:.0%}, {counts['bytes'] / 1e9:.2f} GB from disk so far"


def awaited(llm: LLM, pieces: Iterable[_T]) -> Iterator[_T]:
    """Return the pieces of an answer. If weights stay on disk, it waits for the first one, and a
    line on stderr tells how many bytes have been read for it: a slow disk needs minutes."""
    rest = iter(pieces)
    if llm.model.weight_cache is None:
        return rest
    with _reads_told(llm.model.weight_cache):
        first = list(islice(rest, 1))
    return chain(first, rest)


@contextmanager
def _reads_told(cache: _native.WeightCache) -> Iterator[None]:
    over, before, began = threading.Event(), cache.counts["bytes"], time.monotonic()
    with status("reading weights from disk") as say:

        def update() -> None:
            while not over.wait(UPDATE_S):
                read = (cache.counts["bytes"] - before) / 1e9
                speed = read / (time.monotonic() - began)
                say(f"reading weights from disk: {read:.1f} GB so far, {speed:.2f} GB/s")

        teller = threading.Thread(target=update, name="sterna-disk", daemon=True)
        teller.start()
        try:
            yield
        finally:
            over.set()
            teller.join()
