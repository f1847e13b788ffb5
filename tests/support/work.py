"""Work that is counted: a test for a wait must not fail because the machine is busy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class TooMuchWork(BaseException):
    """More calls than a bound allows. No handler of the code under test takes it for its own."""


@contextmanager
def bounded_calls(most: int) -> Iterator[None]:
    """Raise TooMuchWork once this thread has made more than `most` calls, of Python or of C."""
    left = most

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        left -= event in ("call", "c_call")
        if left < 0:
            sys.setprofile(None)
            raise TooMuchWork(f"more than {most:,} calls")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


def calls_of(function: Callable[[], object]) -> int:
    """Count the calls that a function makes in this thread."""
    calls = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(before)
    return calls
