"""Commands that other packages add, by the entry point group `sterna.commands`.

The name of an entry point is its command's place: `tune` is `sterna tune`, `bench.figure` is
`sterna bench figure`. Its object is a `click.Command`.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import click

from sterna.errors import shown

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = ["GROUP", "load", "names"]

GROUP = "sterna.commands"


def names(parent: str = "") -> list[str]:
    """List the commands that installed packages add to a group; "" is `sterna` itself."""
    return sorted(_found(parent))


def load(name: str, parent: str = "") -> click.Command | None:
    """Load an added command; None if there is none or, after a warning, if it fails to load."""
    entry = _found(parent).get(name)
    if entry is None:
        return None
    try:
        command = entry.load()
    except Exception as error:
        _warn(entry, f"{type(error).__name__}: {error}")
        return None
    if not isinstance(command, click.Command):
        _warn(entry, f"must be a click.Command, but is {type(command).__name__}")
        return None
    return command


def _found(parent: str) -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # slower to import than click

    by_command = {}
    for entry in entry_points(group=GROUP):
        head, _, last = entry.name.rpartition(".")
        if head == parent:
            by_command[last] = entry
    return by_command


def _warn(entry: EntryPoint, why: str) -> None:
    package = entry.dist.name if entry.dist else entry.module
    command = entry.name.replace(".", " ")
    warnings.warn(f"{package}: cannot load the command {shown(command)}: {why}", stacklevel=2)
