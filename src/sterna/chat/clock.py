"""The time that templates get as now: the system's, or an earlier one to repeat an answer."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass

__all__ = ["Clock", "clock", "now"]


@dataclass
class Clock:
    """A moment of local time, without a zone; read: whether a template has asked for it."""

    moment: datetime.datetime
    read: bool = False


_current: ContextVar[Clock | None] = ContextVar("clock", default=None)


@contextlib.contextmanager
def clock(moment: datetime.datetime | None = None) -> Iterator[Clock]:
    """Stop the clock for templates rendered within.

    It stops at the given moment, or else at the outer clock's, or else at the system's.
    """
    around = _current.get()
    if moment is None:
        moment = around.moment if around else datetime.datetime.now()
    stopped = Clock(moment)
    reset = _current.set(stopped)
    try:
        yield stopped
    finally:
        _current.reset(reset)


def now() -> datetime.datetime:
    """Return the time for a template, and note that it was read."""
    stopped = _current.get()
    if stopped is None:
        return datetime.datetime.now()
    stopped.read = True
    return stopped.moment
