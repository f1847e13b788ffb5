"""The file of measurements on this machine, and the timing of candidates."""

from __future__ import annotations

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from sterna import _native
from sterna.checkpoints.cache import cache_dir
from sterna.errors import SternaError
from sterna.files.jsonfile import load_json_object
from sterna.files.writing import replacing
from sterna.runtime import Threads

__all__ = ["GAIN", "LEAST_BYTES", "LEAST_ROUNDS", "cpu", "keep", "kept", "place", "usual_seconds"]

#: A way replaces the default where it is faster by so much: less is noise.
GAIN = 1.03
#: Models below this many bytes a token may sit in a cache: nothing is measured for them.
LEAST_BYTES = 128 << 20
#: Fewer rounds within a budget say that the machine was busy: nothing is chosen then.
LEAST_ROUNDS = 5
_FILE = "measured.json"
_MAX_FILE_BYTES = 1 << 16

Way = TypeVar("Way")


def usual_seconds(
    ways: Iterable[Way],
    seconds_of: Callable[[Way], float],
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[Way, float] | None:
    """Return each way's lower quartile of times in seconds; None if the machine was too
    busy to tell.

    Disturbances only add to a time: while other programs ran, the lower quartile still found the
    same way in 50 trials of 50, the median in 47. The result is kept for all later starts.
    Rounds of all of them follow each other while the clock leaves room for another; the first is
    for warming up. Budgets have room for many. Where one has no room for `LEAST_ROUNDS`, as on a
    busy machine, a moment's disturbance would decide: trying ends as soon as that shows.
    """
    times: dict[Way, list[float]] = {way: [] for way in dict.fromkeys(ways)}
    start = clock()
    for rounds in itertools.count(1):
        for way, seconds in times.items():
            seconds.append(seconds_of(way))
        round_s = (clock() - start) / rounds
        if rounds < LEAST_ROUNDS and round_s * LEAST_ROUNDS > budget_s:
            return None
        if round_s * (rounds + 1) > budget_s:
            break
    warm = {way: sorted(seconds[1:] or seconds) for way, seconds in times.items()}
    return {way: seconds[(len(seconds) - 1) // 4] for way, seconds in warm.items()}


def cpu() -> str:
    """Return the CPU's vendor, numbers and name."""
    cpu = _native.cpu_info()
    return f"{cpu['vendor']} {cpu['family']}/{cpu['model_id']}/{cpu['stepping']} {cpu['model']}"


def place(threads: Threads) -> str:
    """Return the scope of a measurement: the CPU, the number of threads, and their placement."""
    where = f" on {','.join(map(str, threads.cpus))}" if threads.cpus else ""
    return f"{cpu()}, {int(threads)} threads{where}"


def kept(what: str, where: str) -> Any:
    """Return what `keep` was given for this place, as JSON; None for nothing, or if unreadable."""
    folder = cache_dir()
    return _read(folder / _FILE).get(where, {}).get(what) if folder else None


def keep(what: str, where: str, value: Any) -> None:
    """Add a value to the file; a folder that cannot be written is no error."""
    folder = cache_dir()
    if folder is None:
        return
    path = folder / _FILE
    content = _read(path)
    content.setdefault(where, {})[what] = value
    text = json.dumps(content, indent=1).encode()
    with contextlib.suppress(OSError, SternaError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path, len(text)) as file:
            file.write(text)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    with contextlib.suppress(SternaError):
        content = load_json_object(path, _MAX_FILE_BYTES)
        return {k: v for k, v in content.items() if isinstance(v, dict)}
    return {}
