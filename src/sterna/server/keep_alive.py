"""ollama's `keep_alive`: how long a model stays in memory after a request."""

from __future__ import annotations

import re
from typing import Any

from sterna.server.errors import invalid

__all__ = ["unloads"]

#: Go's units of durations, in seconds.
UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,12}(?:\.\d{0,9})?|\.\d{1,9})(ns|us|µs|ms|s|m|h)")
_NUMBER = re.compile(r"[+-]?\d{1,12}(?:\.\d{0,9})?")


def unloads(value: Any) -> bool:
    """Whether a request's `keep_alive` asks to unload the model after it. ApiError 400.

    It is a number of seconds or one of Go's durations, such as 5m or 1h30m; below 0 is forever.
    Only 0 is obeyed: other requests use the model as well, so the server's own option decides.
    """
    return value is not None and _seconds(value) == 0


def _seconds(value: Any) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    text = value.strip() if isinstance(value, str) else ""
    if _NUMBER.fullmatch(text):
        return float(text)
    parts = text.removeprefix("-").removeprefix("+")
    if not parts or _PART.sub("", parts):
        raise invalid("keep_alive", "must be seconds, or a duration such as 5m or 1h30m", value)
    total = sum(float(count) * UNITS[unit] for count, unit in _PART.findall(parts))
    return -total if text.startswith("-") else total
