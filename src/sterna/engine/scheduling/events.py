"""`Event`: what a step did for a request, or the error that ended it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from sterna.engine.request import Request
from sterna.errors import SternaError

__all__ = ["Event", "without_frames"]


@dataclass(frozen=True)
class Event:
    """A step's result for a request: it got `tokens`, or computed prompt tokens, or has ended."""

    request: Request
    tokens: int = 0
    error: Exception | None = None


def without_frames(error: Exception) -> Exception:
    """Return the error without its frames, which would keep sequences, and so pages, alive.

    Unexpected errors keep their traceback as a note, from Python 3.11 on.
    """
    if not isinstance(error, SternaError) and hasattr(error, "add_note"):
        error.add_note("".join(traceback.format_tb(error.__traceback__)))
    return error.with_traceback(None)
