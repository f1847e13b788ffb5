"""How kernels stream and prefetch memory: measured for a CPU and its threads, and kept.

Decoding reads every weight once. Its speed depends on how a core asks for them: as one stream or
several side by side, how far ahead, and into which cache; in a long context also on whether the
next pages of keys and values are prefetched. The fastest way on one CPU is slow on another, and
formats of few bits, whose decoding takes a core's time, need another way than wider ones. So the
first large model on a machine spends half a second on trying. Memory of virtual machines changes
its speed between minutes: where a start finds it far from what was noted, it measures again, and
what costs least over all measurements is chosen. No choice changes a bit.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.calibration.measured import GAIN, LEAST_BYTES, keep, kept, place
from sterna.calibration.memory_trials import CANDIDATES, Mood, measured
from sterna.calibration.readings import Reading, Readings, current, pin
from sterna.checkpoints.cache import cache_dir
from sterna.runtime import Threads, cache_bytes

__all__ = ["MOST_MOODS", "choose", "prepare"]

Codes = npt.NDArray[np.uint8]

#: Measurements that are kept for a machine, each made at another speed of its memory.
MOST_MOODS = 3
#: The factor by which memory must be faster or slower to count as another speed.
FAR = 1.3
_PROBE_BYTES = 64 << 20  # of weights whose reading tells the memory's speed
_WHAT = "reading of memory"

# Threads and their CPUs that have their measured reading; kept for the process, as their pool is.
_prepared: set[tuple[int, tuple[int, ...]]] = set()


def prepare(threads: Threads, isa: str, weight_bytes: int, weights: Iterable[Codes] = ()) -> str:
    """Set how `threads` read memory; return "STERNA_READING", "measured" or "default".

    `STERNA_READING` comes first (`readings.pin`), then earlier measurements on this machine. It
    measures now if a token reads `weight_bytes` beyond any cache, there is a cache folder for the
    result, and there is no measurement, or none at the speed at which `weights`, any codes, are
    read. `isa` is the unit that measures; the result serves all units, since it is about memory.
    Raises RequestError for a malformed STERNA_READING.
    """
    key = int(threads), threads.cpus
    pinned = os.environ.get("STERNA_READING", "")
    if pinned:
        pin(threads, pinned)
        return "STERNA_READING"
    if key in _prepared:
        return "measured"
    if cache_dir() is None or isa == _native.isas()[0]:  # `scalar` never waits for memory
        return "default"
    where = place(threads)
    moods = _checked(kept(_WHAT, where))
    if weight_bytes >= LEAST_BYTES and (
        not moods or _is_far(moods, threads, weight_bytes, weights)
    ):
        mood = measured(threads, isa)
        if mood is not None:
            moods.append(mood)
            keep(_WHAT, where, [one._asdict() for one in moods])
    if not moods:
        return "default"
    choose(moods, current(threads)).set(threads)
    _prepared.add(key)
    return "measured"


def choose(moods: Sequence[Mood], default: Readings) -> Readings:
    """Choose what costs least in all measurements; `default` unless one gains on it by `GAIN`."""

    def cheapest(kind: str) -> str:
        costs = {
            way: sum(getattr(mood, kind).get(way, cost) for mood in moods)
            for way, cost in getattr(moods[0], kind).items()
        }
        usual, best = str(getattr(default, kind)), min(costs, key=lambda way: costs[way])
        return best if costs[best] * GAIN < costs.get(usual, float("inf")) else usual

    few_bits, many_bits = (Reading.parse(cheapest(kind)) for kind in CANDIDATES)
    return Readings(few_bits, many_bits, cheapest("next_page") == str(True))


def _is_far(
    moods: Sequence[Mood], threads: Threads, weight_bytes: int, weights: Iterable[Codes]
) -> bool:
    """Return whether weights are read at a speed of which there is no measurement yet."""
    caches = cache_bytes()
    if len(moods) >= MOST_MOODS or weight_bytes < 2 * caches[max(caches)]:
        return False
    probed: list[Codes] = []
    left = _PROBE_BYTES
    for codes in weights:
        probed.append(codes.reshape(-1)[:left])
        left -= probed[-1].size
        if left == 0:
            gb_s = _native.read_gb_s(threads, probed)
            return all(max(gb_s / mood.gb_s, mood.gb_s / gb_s) > FAR for mood in moods)
    return False


def _checked(value: object) -> list[Mood]:
    """Return kept measurements; none where they are not of today's candidates."""

    def is_cost(x: object) -> bool:
        return isinstance(x, float | int) and 0 < x < 1e9

    def is_sound(mood: object) -> bool:
        return (
            isinstance(mood, dict)
            and mood.keys() == set(Mood._fields)
            and is_cost(mood["gb_s"])
            and all(
                isinstance(mood[kind], dict)
                and set(map(str, ways)) <= mood[kind].keys()
                and all(map(is_cost, mood[kind].values()))
                for kind, ways in {**CANDIDATES, "next_page": (True, False)}.items()
            )
        )

    if not isinstance(value, list) or not all(map(is_sound, value)):
        return []
    return [Mood(**mood) for mood in value[:MOST_MOODS]]
