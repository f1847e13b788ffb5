"""Checks of arguments: a value of the kind and range that is wanted, or RequestError names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from sterna.errors import RequestError, shown

__all__ = ["checked_flag", "checked_items", "checked_name", "checked_real", "checked_whole"]


def checked_whole(name: str, value: object, low: int, high: int, of: str = "") -> int:
    """A whole number of low..high, numpy's too; RequestError names it. of: whose limits these are.

    True is no number here, though Python counts it as one.
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
    """A number of [low, high], or of (low, high]; RequestError names it. NaN is in no interval."""
    if isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool):
        # A huge int compares where it would not convert.
        above = value > low if open_low else value >= low
        if above and value <= high:
            return float(value)
    raise RequestError(
        f"{name}: must lie in {'(' if open_low else '['}{low:g}, {high:g}], but got {shown(value)}"
    )


def checked_flag(name: str, value: object) -> bool:
    """True or False, numpy's too; RequestError names what is something else."""
    if not isinstance(value, (bool, np.bool_)):
        raise RequestError(f"{name}: must be True or False, but got {shown(value)}")
    return bool(value)


def checked_name(name: str, value: object, known: Iterable[str], remedy: str = "") -> str:
    """One of the names that are known; RequestError lists them. An array is none of them."""
    if isinstance(value, str) and value in (names := tuple(known)):
        return value
    names = tuple(known)
    raise RequestError(
        f"{name}: must be one of {', '.join(names)}, but got {shown(value)}"
        f"{'; ' if remedy else ''}{remedy}"
    )


def checked_items(name: str, value: Any, what: str) -> Iterator[Any]:
    """Iterates over a value; RequestError says `what` it must be where that cannot be.

    Having `__iter__` is not enough: an array without dimensions has it.
    """
    try:
        if not isinstance(value, (bytes, bytearray)):
            return iter(value)
    except TypeError:
        pass
    raise RequestError(f"{name}: must be {what}, but got {shown(value)}")
