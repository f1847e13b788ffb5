"""`within_cpu_time`: bounds work that cannot be interrupted, by the CPU time of its thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["CpuTimeExceeded", "within_cpu_time"]

T = TypeVar("T")
#: Seconds between two looks at the thread's clock.
LOOK_S = 0.2


class CpuTimeExceeded(Exception):
    """The work has used more CPU time than it may."""


def within_cpu_time(seconds: float, work: Callable[[], T]) -> T:
    """Return the result of `work`, which runs on a thread.

    Raises CpuTimeExceeded once the thread has used so many seconds of CPU time, however long that
    takes on a busy machine. The thread cannot be ended: it runs on, unseen.
    """
    results: list[T] = []
    errors: list[BaseException] = []
    clocks: list[int] = []
    done = threading.Event()

    def run() -> None:
        clocks.append(time.pthread_getcpuclockid(threading.get_ident()))
        try:
            results.append(work())
        except BaseException as e:  # raised below
            errors.append(e)
        finally:
            done.set()

    threading.Thread(target=run, name="cpu-time", daemon=True).start()
    while not done.wait(LOOK_S):
        if clocks and _used(clocks[0]) > seconds and not done.is_set():
            raise CpuTimeExceeded
    if errors:
        raise errors[0]
    return results[0]


def _used(clock: int) -> float:
    try:
        return time.clock_gettime(clock)
    except OSError:  # the thread has just ended
        return 0.0
