"""Waits of tests: a busy machine may take any time, so only what hangs meets their bound."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: A guard, in seconds, for whatever a test waits for: a hundred times what it takes.
HANGS_S = 600.0

T = TypeVar("T")


def wait_until(condition: Callable[[], T], told: Callable[[], object] = str) -> T:
    """Return what the condition returns once that is true; fail, and say `told`, where it hangs."""
    end = time.monotonic() + HANGS_S
    while not (found := condition()):
        assert time.monotonic() < end, f"waited in vain: {told()}"
        time.sleep(0.01)
    return found
