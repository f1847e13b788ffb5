"""How kernels stream and prefetch memory: measured once for a CPU and its threads.

Decoding reads every weight once. Its speed depends on how a core asks for them: as one stream or
several side by side, and how far ahead; in a long context also on whether the next page of keys and
values is prefetched. The fastest way on one CPU is slow on another, so the first large model on a
machine spends half a second on trying. No choice changes a bit.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sterna import _native
from sterna.calibration.measured import GAIN, LEAST_BYTES, keep, kept, place, usual_seconds
from sterna.checkpoints.cache import cache_dir
from sterna.errors import RequestError, shown
from sterna.formats.layout import Layout
from sterna.runtime import Threads, cache_bytes

__all__ = ["CANDIDATES", "Reading", "choose", "current", "prepare"]


class Reading(NamedTuple):
    """How weights and pages are read.

    streams: tiles read side by side. turn_bytes: bytes of one tile before the next has its turn.
    prefetch_bytes: how far ahead. next_page: whether attention prefetches the next page.
    """

    streams: int
    turn_bytes: int
    prefetch_bytes: int
    next_page: bool = True


#: The candidates. One stream with a prefetch of a page is best on Zen 4 and 5, four
#: streams on Xeons.
CANDIDATES = (
    Reading(1, 4096, 4096),
    Reading(1, 4096, 2048),
    Reading(1, 4096, 8192),
    Reading(2, 4096, 4096),
    Reading(4, 512, 2048),
    Reading(4, 1024, 1024),
)
#: Seconds for trying weights and pages, without making them.
WEIGHTS_S, PAGES_S = 0.15, 0.1
_BYTES = 128 << 20  # that are read, or as many as are twice a cache
_MOST_BYTES = 512 << 20
# Of weights that a way reads at a time, about a millisecond's: so each is timed often, and what
# disturbs a moment disturbs one time of many.
_SLICE_BYTES = 32 << 20
_K = 2560
_KV_HEADS, _HEAD_DIM, _GROUP = 4, 128, 4  # of the pages

# Threads and their CPUs that have their measured reading; kept for the process, as their pool is.
_prepared: set[tuple[int, tuple[int, ...]]] = set()


def prepare(threads: Threads, isa: str, weight_bytes: int) -> str:
    """Set how `threads` read memory; returns "STERNA_READING", "measured" or "default".

    `STERNA_READING` comes first ("streams,turn_bytes,prefetch_bytes", and ",0" to request no page
    ahead), then an earlier measurement on this machine. Otherwise it measures now, if a token reads
    `weight_bytes` beyond any cache and there is a cache folder for the result. `isa` is the unit
    that measures; the result serves all units, since it is about memory. Raises RequestError for a
    malformed STERNA_READING.
    """
    key = int(threads), threads.cpus
    pinned = os.environ.get("STERNA_READING", "")
    if pinned:
        _pin(threads, pinned)
        return "STERNA_READING"
    if key in _prepared:
        return "measured"
    if cache_dir() is None or isa == _native.isas()[0]:  # `scalar` never waits for memory
        return "default"
    where = place(threads)
    reading = _checked(kept("reading", where))
    if reading is None:
        if weight_bytes < LEAST_BYTES:
            return "default"
        reading = _measured(threads, isa)
        if reading is None:
            return "default"
        keep("reading", where, reading)
    _set(threads, reading)
    _prepared.add(key)
    return "measured"


def current(threads: int) -> Reading:
    """Return how these threads read memory now."""
    return Reading(*_native.reading(threads))


def choose(
    candidates: Sequence[Reading],
    default: Reading,
    seconds_of: Callable[[Reading], float],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Reading | None:
    """Choose the reading of the least usual time; `default` unless another gains `GAIN` on it.

    seconds_of: reads once. Times are taken as `measured.usual_seconds` says; None where that is.
    """
    usual = usual_seconds([default, *candidates], seconds_of, budget_s, clock)
    if usual is None:
        return None
    best = min(usual, key=lambda reading: usual[reading])
    return best if usual[best] * GAIN < usual[default] else default


def _measured(threads: Threads, isa: str) -> Reading | None:
    """Choose the fastest out of cache; None if memory is too short, or the machine too busy."""
    default = current(threads)
    caches = cache_bytes()
    nbytes = min(max(_BYTES, 2 * caches[max(caches)]), _MOST_BYTES)
    try:
        of_weights = _of_weights(threads, isa, default, nbytes)
        return _of_pages(threads, isa, of_weights, nbytes) if of_weights else None
    except MemoryError:
        return None
    finally:
        _set(threads, default)


def _of_weights(threads: Threads, isa: str, default: Reading, nbytes: int) -> Reading | None:
    """Choose the fastest on weights of two bits.

    Their slices have their turns in order, so that a slice that is read again has left the cache.
    """
    layout = Layout("b2")
    rows, tile = layout.tile_rows, layout.tile_bytes(_K)
    tiles = _SLICE_BYTES // tile
    scale = _native.alloc(tiles * rows * 4).view("float32")
    slices = []
    for _ in range(nbytes // _SLICE_BYTES):
        codes = _native.alloc(tiles * tile)
        codes.fill(0b01010101)  # written: untouched pages are all one page, which is in the cache
        codes = codes.reshape(tiles, tile)
        slices.append(_native.Weight(layout.name, tiles * rows, _K, codes, scale, 2))
    turns = itertools.cycle(slices)

    def seconds_of(reading: Reading) -> float:
        _set(threads, reading)
        return _native.time_linear([next(turns)], 1, isa, threads, 1)[0]

    return choose(CANDIDATES, default, seconds_of, WEIGHTS_S)


def _of_pages(threads: Threads, isa: str, default: Reading, nbytes: int) -> Reading | None:
    """Choose `next_page` on the keys and values of one token's attention, of the default type."""
    page = _native.page_positions
    positions = _SLICE_BYTES // _native.kv_bytes(1, _KV_HEADS, _HEAD_DIM, "i16") // page * page
    turns = itertools.cycle(
        [
            _native.AttentionTimer(_KV_HEADS, _HEAD_DIM, positions, "i16")
            for _ in range(nbytes // _SLICE_BYTES)
        ]
    )

    def seconds_of(reading: Reading) -> float:
        _set(threads, reading)
        return next(turns).seconds(isa, threads, _GROUP)

    candidates = [default._replace(next_page=ahead) for ahead in (True, False)]
    return choose(candidates, default, seconds_of, PAGES_S)


def _set(threads: Threads, reading: Reading) -> None:
    _native.set_reading(threads, *reading)


def _pin(threads: Threads, text: str) -> None:
    try:
        streams, turn_bytes, prefetch_bytes, *next_page = map(int, text.split(","))
        if next_page not in ([], [0], [1]):
            raise ValueError("next_page: must be 0 or 1")
        _set(threads, Reading(streams, turn_bytes, prefetch_bytes, next_page != [0]))
    except (TypeError, ValueError) as error:
        raise RequestError(
            "STERNA_READING: must be streams,turn_bytes,prefetch_bytes such as 1,4096,4096, with "
            f"a 0 after them to prefetch no pages, but got {shown(text)} ({error})"
        ) from None


def _checked(value: object) -> Reading | None:
    """Check a kept reading; None if it is not one that was ever tried."""
    tried = [r._replace(next_page=ahead) for r in CANDIDATES for ahead in (True, False)]
    return next((r for r in tried if list(r) == value), None)
