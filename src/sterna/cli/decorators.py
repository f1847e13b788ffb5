"""Decorators that add options to a command, shorter than click's, and several of them as one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from sterna.errors import shown

__all__ = [
    "EXISTING_FILE",
    "EXISTING_FOLDER",
    "FILE",
    "FOLDER",
    "WRITABLE_FILE",
    "Command",
    "Option",
    "combined",
    "flag",
    "option",
    "size",
]

SIZES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Command = TypeVar("Command", bound=Callable[..., Any])

FILE = click.Path(dir_okay=False, path_type=Path)
FOLDER = click.Path(file_okay=False, path_type=Path)
EXISTING_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
WRITABLE_FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


class Option(Protocol):
    """A decorator that adds an option, or several, to a command."""

    def __call__(self, command: Command, /) -> Command:
        """Return the command with the option."""
        ...


def option(names: str, help: str, *, shown: object = None, **settings: Any) -> Option:
    """Make an option from its names, separated by spaces, as click.option does.

    shown: its default, which the help shows. settings: those of click.option.
    """
    if shown is not None:
        settings.update(default=shown, show_default=True)
    return click.option(*names.split(), help=help, **settings)


def flag(names: str, help: str, **settings: Any) -> Option:
    """Make an option without a value: True if it is there. settings: those of click.option."""
    return option(names, help, is_flag=True, **settings)


def combined(*options: Option) -> Option:
    """Return a decorator that adds all of these options, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def size(value: str | int) -> int:
    """Parse bytes: 65536, 64K, 1M."""
    match = re.fullmatch(r"(\d{1,15})([kmg]?)i?b?", str(value).strip().lower())
    if not match:
        raise click.BadParameter(f"must be bytes such as 65536, 64K or 1M, but got {shown(value)}")
    return int(match[1]) * SIZES[match[2]]
