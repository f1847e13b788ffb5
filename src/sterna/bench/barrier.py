"""The cost of a barrier, at which all threads wait once for every operation of a program."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sterna import _native
from sterna.errors import RequestError, shown
from sterna.runtime import resolve_threads

__all__ = ["run"]

ROUNDS = 20_000
#: Fields that the rows of all benchmarks have, and that do not apply to a barrier.
_OTHERS = (
    *("format", "shape", "n", "isa", "gb_s", "gops", "peak_gops"),
    *("fraction_of_bandwidth", "fraction_of_peak"),
)


def run(threads: Sequence[int] = (), *, cores: str | None = None) -> list[dict[str, Any]]:
    """Return a row for each number of threads; barrier_ns is the time from barrier to barrier.

    It is the mean of 20,000 barriers without work between them, in the best of five runs. threads:
    default 1, 2, 4, … and the default number. One thread does not wait; more threads than CPUs
    sleep, which takes microseconds. Raises RequestError as `resolve_threads` does.
    """
    if isinstance(threads, (str, bytes)) or not isinstance(threads, Sequence):
        raise RequestError(f"threads: must be numbers of threads, but got {shown(threads)}")
    if not threads:
        most = int(resolve_threads(None, cores))
        threads = sorted({1 << i for i in range(most.bit_length())} | {most})
    teams = [resolve_threads(count, cores) for count in threads]
    return [
        {
            "test": "barrier",
            "threads": int(team),
            "barrier_ns": round(_native.barrier_ns(team, ROUNDS), 1),
            **dict.fromkeys(_OTHERS),
        }
        for team in teams
    ]
