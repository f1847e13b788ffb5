"""Checks of arguments: return the value, or raise a RequestError that names the argument."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sterna.errors import RequestError, shown

__all__ = ["checked_flag", "checked_items", "checked_name", "checked_real", "checked_whole"]


def checked_whole(name: str, value: object, low: int, high: int, of: str = "") -> int:
    """Check a whole number in low..high, numpy's included, but no bool.

    of: whose limits these are, for the error.
    """
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        whole = int(value)
        if low <= whole <= high:
            return whole
    raise RequestError(
        f"{name}: must be a whole number in {low}..{high}{of}, but got {shown(value)}"
    )


def checked_real(
    name: str, value: object, low: float, high: float, open_low: bool = False
) -> float:
    """Check a number in [low, high], or (low, high] if `open_low`; NaN fails."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        # Compare before converting: a huge int has no float.
        above = value > low if open_low else value >= low
        if above and value <= high:
            return float(value)
    raise RequestError(
        f"{name}: must lie in {'(' if open_low else '['}{low:g}, {high:g}], but got {shown(value)}"
    )


def checked_flag(name: str, value: object) -> bool:
    """Check a bool, numpy's included."""
    if not isinstance(value, (bool, np.bool_)):
        raise RequestError(f"{name}: must be True or False, but got {shown(value)}")
    return bool(value)


def checked_name(name: str, value: object, known: Iterable[str], remedy: str = "") -> str:
    """Check that a value is one of the known names; the error lists them."""
    if isinstance(value, str) and value in (names := tuple(known)):
        return value
    names = tuple(known)
    raise RequestError(
        f"{name}: must be one of {', '.join(names)}, but got {shown(value)}"
        f"{'; ' if remedy else ''}{remedy}"
    )


def checked_items(name: str, value: Any, what: str) -> Iterator[Any]:
    """Return an iterator over a value, or raise an error that says `what` it must be.

    An attribute `__iter__` is not enough: an array without dimensions has one.
    """
    try:
        if not isinstance(value, (bytes, bytearray)):
            return iter(value)
    except TypeError:
        pass
    raise RequestError(f"{name}: must be {what}, but got {shown(value)}")
