"""Weight formats, one file each.

A module of this package with a FORMAT of its own name is one. It is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from difflib import get_close_matches
from functools import cache, lru_cache
from math import gcd

from sterna.errors import RequestError, shown
from sterna.formats.base import Format
from sterna.formats.expert_weights import Experts
from sterna.formats.floats import FloatFormat
from sterna.formats.level_tables import named
from sterna.formats.lookup_files import lookup_format
from sterna.formats.packed_weight import PackedWeight
from sterna.formats.scales import GroupScales, RowScales
from sterna.formats.scales.groups import GROUP_K
from sterna.formats.shadow import Shadow

__all__ = [
    "GROUP_K",
    "Experts",
    "FloatFormat",
    "Format",
    "PackedWeight",
    "Shadow",
    "fitting",
    "float_format",
    "get",
    "names",
    "register",
    "with_method",
]

_MODULES = frozenset(info.name for info in pkgutil.iter_modules(__path__))
_REGISTERED: dict[str, Format] = {}  # formats of other packages


def register(format: Format) -> None:
    """Add a format of another package, whose layout `_native.add_layouts` has added."""
    _REGISTERED[format.name] = format


def _format(name: str) -> Format | None:
    """Return the format of this name, None if there is none."""
    return _REGISTERED.get(name) or _of_module(name) or named(name)


@cache
def _of_module(name: str) -> Format | None:
    """Import the format that a module of this name defines; None if there is none."""
    if name not in _MODULES:
        return None
    constant = getattr(importlib.import_module(f"{__name__}.{name}"), "FORMAT", None)
    return constant if isinstance(constant, Format) else None


def names() -> list[str]:
    """List the names of all formats that are offered for rounding, sorted."""
    every = {*_MODULES, *_REGISTERED}
    return sorted(
        n for n in every if (format_of := _format(n)) is not None and not format_of.of_files
    )


def get(name: str | Format) -> Format:
    """Return the format of a name, or itself; RequestError, which lists all, for an unknown name.

    A suffix changes where an integer format has its scales: `i2:tensor`, `i2:row`, or `i2:g64`, an
    f16 for every 64 k of a row (a multiple of 32).
    """
    if isinstance(name, Format):
        return name
    if isinstance(name, str):
        base, colon, scale = name.partition(":")
        base_format = _format(base)
        if base_format is not None:
            return _with_scale(base_format, scale) if colon else base_format
        if (lookup := lookup_format(name)) is not None:
            raise RequestError(
                f"format: {base} is a lookup-table format of a paper, which only the figures of "
                "sterna-papers run (papers/README.md); "
                f"use {lookup.becomes}, which has the same levels"
            )
    near = get_close_matches(name.lower(), names(), 1) if isinstance(name, str) else []
    remedy = f"; did you mean {near[0]}?" if near else ""
    raise RequestError(
        f"format: must be one of {', '.join(names())}, but got {shown(name)}{remedy}"
    )


def fitting(format: Format, K: int) -> Format:
    """Return a format for a matrix of K columns: the given one, or its replacement.

    If blocks do not divide the rows, GGUF's formats are replaced by one of shorter blocks, as in
    llama.cpp's quantiser (q4_k to q5_0, q6_k to q8_0 …), and groups to the longest that fit
    (`i4:g128` to `i4:g64`). If nothing fits, the given one is returned, and `check_shape` refuses
    it.
    """
    if K % format.scales.block == 0:
        return format
    other = format
    if format.instead:
        other = get(format.instead)
    elif ":g" in format.name and (group := gcd(K, format.scales.group)) % GROUP_K == 0:
        name = f"{format.name.partition(':')[0]}:g{group}"
        other = format.with_scales(name, GroupScales(group))
    return format if K % other.scales.block else other


def float_format(name: str) -> FloatFormat:
    """Return the float format of a name; the format must be one that keeps values as they are."""
    format = _format(name)
    assert isinstance(format, FloatFormat)
    return format


def names_of(condition: Callable[[Format], bool]) -> str:
    """List the formats that meet a condition, for a message: a, b or c."""
    *others, last = (name for name in names() if condition(get(name)))
    return f"{', '.join(others)} or {last}" if others else last


def with_method(format: Format, method: str) -> Format:
    """Return a format that rounds by another method; RequestError if it does not have it."""
    from sterna.formats.pot_levels import Powers

    if isinstance(format, Powers):
        return format.with_method(method)
    several = names_of(lambda f: isinstance(f, Powers))
    raise RequestError(
        f"method: {format.name} is rounded in one way only, but got {shown(method)}; methods are "
        f"for {several}"
    )


def known(name: str) -> bool:
    """Whether a format has this name."""
    try:
        get(name)
    except RequestError:
        return False
    return True


@lru_cache(maxsize=64)
def _with_scale(format: Format, scale: str) -> Format:
    name = f"{format.name}:{scale}"
    if not format.scaled or (format.scales.group and not format.takes_groups):
        raise RequestError(f"format: {format.name} has fixed scales, but got {shown(name)}")
    if scale in ("tensor", "row"):
        return format.with_scales(name, RowScales(scale))
    if not format.takes_groups:
        raise RequestError(
            f"format: {format.name} has a scale for all weights or for each row, "
            f"but got {shown(name)}; "
            f"use {names_of(lambda f: f.takes_groups)} for groups"
        )
    digits = scale[1:]
    if scale[:1] != "g" or not (digits.isascii() and digits.isdigit() and len(digits) < 6):
        raise RequestError(
            f"format: a scale must be tensor, row or g with a number, such as {format.name}:g64, "
            f"but got {shown(name)}"
        )
    group = int(digits)
    if group == 0 or group % GROUP_K:
        raise RequestError(
            f"format: a group must be a multiple of {GROUP_K}, but got {shown(name)}"
        )
    name = f"{format.name}:g{group}"  # g032 is g32
    return format.with_scales(name, GroupScales(group))
