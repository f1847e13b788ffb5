"""The machine of a benchmark: caches, free memory, and limits measured in the same run."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from sterna import _native
from sterna.bench.report import Limits
from sterna.calibration import prepare
from sterna.calibration.bandwidth import best_bandwidth, measure_bandwidth
from sterna.errors import RequestError
from sterna.files.system import busy_seconds
from sterna.formats import Format
from sterna.runtime import Threads, available_bytes, cache_bytes, resolve_isa, resolve_threads

__all__ = [
    "Known",
    "OtherLoad",
    "Pace",
    "Progress",
    "Rows",
    "Yardsticks",
    "available_bytes",
    "cache_bytes",
    "out_of_cache_bytes",
    "peak_kind",
    "require_bytes",
    "teams",
    "units",
]

Progress = Callable[[str], None]  # called with the name of the running measurement
Rows = list[dict[str, Any]]
#: Called before a run measures, with a function that returns the rows known so far, for the case
#: that the run is ended early.
Known = Callable[[Callable[[], Rows]], None]


def teams(threads: Sequence[int] | None, cores: str | None = None) -> list[Threads]:
    """Resolve thread counts, none twice, and the cores they run on (`resolve_threads`).

    None is one count: all the cores of the set. Raises RequestError for a count out of range, or
    for cores that are not available.
    """
    counts: list[int | None] = list(dict.fromkeys(threads)) if threads else [None]
    return [resolve_threads(count, cores) for count in counts]


def units(isas: Sequence[str] | None) -> list[str]:
    """Resolve kernel units, none twice; None is the one in use, "all" those that run here.

    Raises RequestError or UnsupportedCPUError.
    """
    if not isas:
        return [resolve_isa()]
    names = [name for isa in isas for name in (_native.isas() if isa == "all" else [isa])]
    return list(dict.fromkeys(map(resolve_isa, names)))


def prepare_reading(teams: Iterable[tuple[Threads, str]]) -> None:
    """Calibrate how threads read weights for a kernel unit, as loading a model does."""
    for team, isa in dict.fromkeys(teams):
        prepare(team, isa, out_of_cache_bytes())


def require_bytes(needed: int, what: str, remedy: str) -> None:
    """Raise RequestError unless this many bytes are available; call it before allocating."""
    available = available_bytes()
    if needed > available:
        raise RequestError(
            f"{what}: {needed / 1e9:.2f} GB of memory must be available, but {available / 1e9:.2f} "
            f"GB are; {remedy}"
        )


def out_of_cache_bytes() -> int:
    """Return a size of which no byte stays in cache from one round to the next.

    It is four times the last-level cache, but at least 1 GiB.
    """
    sizes = cache_bytes()
    return max(1 << 30, 4 * sizes[max(sizes)])


def peak_kind(format: Format, isa: str, fast: bool = False) -> tuple[str, int]:
    """Return (kind, products): the kind of `_native.peak_gops` to compare a format's kernels with.

    products: multiplications of that kind for one of the format's. They are several for fast float
    layers, which multiply planes of bf16.
    """
    if format.integer:
        return "int8", 1
    return ("bf16", _native.fast_layouts(isa)[format.layout.name][0]) if fast else ("f32", 1)


class Pace:
    """Estimates how long a run still takes, from the time of the steps that are done."""

    def __init__(self, total: int) -> None:
        """total: the number of steps."""
        self._total, self._begun, self._began = total, 0, time.monotonic()

    def step(self, text: str) -> str:
        """Begin a step, and return its text with the time left, from the second step on."""
        done, self._begun = self._begun, self._begun + 1
        if not done:
            return text
        left = (time.monotonic() - self._began) / done * max(0, self._total - done)
        return f"{text}; about {_duration(left)} left"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


class OtherLoad:
    """How much of this machine's CPU time goes to other programs while a benchmark runs."""

    def __init__(self) -> None:
        """Begin now."""
        self._began = self._now()

    def share(self) -> float | None:
        """Return others' share of the time of all CPUs since the beginning; None if unknown."""
        (wall, own, busy), (wall_now, own_now, busy_now) = self._began, self._now()
        if busy is None or busy_now is None or wall_now <= wall:
            return None
        others = (busy_now - busy) - (own_now - own)
        return max(0.0, min(1.0, others / (wall_now - wall) / (os.cpu_count() or 1)))

    @staticmethod
    def _now() -> tuple[float, float, float | None]:
        """Seconds: of the clock, of the CPUs for this process and its children, and for all."""
        return time.monotonic(), sum(os.times()[:4]), busy_seconds()


class Yardsticks:
    """Bandwidth, peak and clock, measured in every round of a run; the results are medians.

    A virtual machine's memory changes its speed within minutes, so a single measurement at the
    start would say little about the machine on which the later kernels ran.
    """

    def __init__(self) -> None:
        self._bandwidth: dict[int, list[float]] = defaultdict(list)
        self._best: dict[int, float] = {}
        self._peak: dict[tuple[str, int, str], list[float]] = defaultdict(list)
        self._clock: dict[int, list[float]] = defaultdict(list)

    def measure_bandwidth(self, threads: Threads) -> float:
        """Measure memory with `calibration.bandwidth`; returns this round's 10^9 bytes/second."""
        self._bandwidth[threads].append(measure_bandwidth(threads))
        self._best[threads] = best_bandwidth(threads)
        return self._bandwidth[threads][-1]

    def measure_peak(self, isa: str, threads: int, kind: str) -> float:
        """Measure a unit's best instruction of a kind ("int8", "f32", "bf16"), from registers.

        Returns this round's value, in 10^9 operations per second.
        """
        self._peak[isa, threads, kind].append(_native.peak_gops(isa, threads, kind))
        return self._peak[isa, threads, kind][-1]

    def measure_clock(self, threads: int) -> None:
        """Measure the cores' frequency while `threads` of them work."""
        self._clock[threads].append(_native.cycles_per_second(threads))

    def bandwidth_gb_s(self, threads: int) -> float:
        """Return the median over the rounds, in 10^9 bytes per second."""
        return statistics.median(self._bandwidth[threads])

    def limits(self, threads: int, peak_gops: float) -> Limits:
        """Return what rows of these threads are compared with."""
        return Limits(self.bandwidth_gb_s(threads), self._best.get(threads, 0.0), peak_gops)

    def peak_gops(self, isa: str, threads: int, kind: str) -> float:
        """Return the median over the rounds, in 10^9 operations per second."""
        return statistics.median(self._peak[isa, threads, kind])

    def clock_hz(self, threads: int) -> float:
        """Return the median over the rounds, in cycles per second of one core."""
        return statistics.median(self._clock[threads])
