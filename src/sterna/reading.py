"""How few tokens' weights are asked for from memory: measured once for a CPU and its threads.

Decoding reads every weight once, and how a core asks for them decides how fast: as one stream or as
several side by side, and how far ahead of the arithmetic. What is fastest on one CPU is slow on the
next, so the first large model on a machine spends half a second on trying. No choice changes a bit.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from sterna import _native
from sterna.checkpoints.cache import cache_dir
from sterna.checkpoints.files import replacing
from sterna.errors import RequestError, SternaError, shown
from sterna.runtime import Threads, cache_bytes

__all__ = ["CANDIDATES", "Reading", "choose", "current", "prepare"]


class Reading(NamedTuple):
    """Tiles read side by side, bytes of one before the next has its turn, bytes asked for ahead."""

    streams: int
    turn_bytes: int
    prefetch_bytes: int


#: What is tried. One stream that asks a page ahead serves AMD's Zen 4 and 5, four streams Xeons.
CANDIDATES = (
    Reading(1, 4096, 4096),
    Reading(1, 4096, 2048),
    Reading(1, 4096, 8192),
    Reading(2, 4096, 4096),
    Reading(4, 512, 2048),
    Reading(4, 1024, 1024),
)
#: Seconds that trying takes, with making the weights.
BUDGET_S = 0.5
#: A reading replaces the CPU's default where it is faster by so much: less is noise.
GAIN = 1.03
#: Models below this many bytes a token may sit in a cache: nothing is measured for them.
LEAST_BYTES = 128 << 20
_WEIGHT_BYTES = 128 << 20  # that are read, or as many as are twice a cache
_MOST_WEIGHT_BYTES = 1 << 30
_K = 2560
_FILE = "reading.json"
_MAX_FILE_BYTES = 1 << 16

# Threads and their CPUs that have their measured reading; kept for the process, as their pool is.
_prepared: set[tuple[int, tuple[int, ...]]] = set()


def prepare(threads: Threads, isa: str, weight_bytes: int) -> str:
    """Sets how `threads` read weights; returns "STERNA_READING", "measured" or "default".

    From `STERNA_READING` ("streams,turn_bytes,prefetch_bytes"), else what was measured on this
    machine before, else measured now, if a token reads `weight_bytes` beyond any cache and there is
    a cache folder to keep it in. `isa` is the unit that measures; what is found serves all units:
    it is about memory. Raises RequestError for a STERNA_READING that is no reading.
    """
    key = int(threads), threads.cpus
    pinned = os.environ.get("STERNA_READING", "")
    if pinned:
        _pin(threads, pinned)
        return "STERNA_READING"
    if key in _prepared:
        return "measured"
    folder = cache_dir()
    if folder is None or isa == _native.isas()[0]:  # `scalar` never waits for memory
        return "default"
    name = _name(threads)
    reading = _stored(folder / _FILE).get(name)
    if reading is None:
        if weight_bytes < LEAST_BYTES:
            return "default"
        reading = _measured(threads, isa)
        if reading is None:
            return "default"
        _store(folder / _FILE, name, reading)
    _set(threads, reading)
    _prepared.add(key)
    return "measured"


def current(threads: int) -> Reading:
    """How these threads read weights now."""
    return Reading(*_native.reading(threads))


def choose(
    candidates: Sequence[Reading],
    default: Reading,
    seconds_of: Callable[[Reading], float],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> Reading:
    """The reading of the least median time; `default` unless another gains on it by `GAIN`.

    seconds_of: reads the weights once. Rounds of all candidates follow each other while the clock
    leaves room for another; the first is for warming up, if there is a second.
    """
    every = list(dict.fromkeys([default, *candidates]))
    times: dict[Reading, list[float]] = {reading: [] for reading in every}
    start = clock()
    rounds = 0
    while rounds == 0 or (clock() - start) * (rounds + 1) / rounds <= budget_s:
        for reading in every:
            times[reading].append(seconds_of(reading))
        rounds += 1
    median = {r: statistics.median(t[1:] or t) for r, t in times.items()}
    best = min(every, key=lambda reading: median[reading])
    return best if median[best] * GAIN < median[default] else default


def _measured(threads: Threads, isa: str) -> Reading | None:
    """The fastest on weights of two bits, out of cache; None where memory is too short for them."""
    start = time.perf_counter()
    caches = cache_bytes()
    nbytes = min(max(_WEIGHT_BYTES, 2 * caches[max(caches)]), _MOST_WEIGHT_BYTES)
    rows = _native.tile_rows("b2")
    tile = _native.tile_bytes("b2", _K)
    tiles = nbytes // tile
    try:
        codes = _native.alloc(tiles * tile)
        scale = _native.alloc(tiles * rows * 4).view("float32")
    except MemoryError:
        return None
    codes.fill(0b01010101)  # written: untouched pages are all one page, which is in the cache
    weight = _native.Weight("b2", tiles * rows, _K, codes.reshape(tiles, tile), scale, 2)
    default = current(threads)

    def seconds_of(reading: Reading) -> float:
        _set(threads, reading)
        return _native.time_linear([weight], 1, isa, threads, 1)[0]

    try:
        return choose(CANDIDATES, default, seconds_of, BUDGET_S - (time.perf_counter() - start))
    finally:
        _set(threads, default)


def _set(threads: Threads, reading: Reading) -> None:
    _native.set_reading(threads, *reading)


def _pin(threads: Threads, text: str) -> None:
    try:
        _set(threads, Reading(*map(int, text.split(","))))
    except (TypeError, ValueError) as error:
        raise RequestError(
            "STERNA_READING: must be streams,turn_bytes,prefetch_bytes, such as 1,4096,4096, but "
            f"got {shown(text)} ({error})"
        ) from None


def _name(threads: Threads) -> str:
    """What a reading was measured for."""
    cpu = _native.cpu_info()
    model = f"{cpu['vendor']} {cpu['family']}/{cpu['model_id']}/{cpu['stepping']} {cpu['model']}"
    place = f" on {','.join(map(str, threads.cpus))}" if threads.cpus else ""
    return f"{model}, {int(threads)} threads{place}"


def _stored(path: Path) -> dict[str, Reading]:
    """What was measured before; whatever is not readable was not."""
    with contextlib.suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if path.stat().st_size <= _MAX_FILE_BYTES:
            found = json.loads(path.read_text(encoding="utf-8"))
            return {name: r for name, value in found.items() if (r := _checked(value))}
    return {}


def _checked(value: object) -> Reading | None:
    """A stored reading, None where it is none that was ever tried."""
    if isinstance(value, list) and len(value) == 3:
        return next((r for r in CANDIDATES if list(r) == value), None)
    return None


def _store(path: Path, name: str, reading: Reading) -> None:
    """Beside those of other teams; a folder that cannot be written is no error."""
    text = json.dumps({**_stored(path), name: reading}, indent=1).encode()
    with contextlib.suppress(OSError, SternaError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, len(text)) as file:
            file.write(text)
