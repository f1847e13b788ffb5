"""The type of decorators that add options to a command, and several of them as one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

__all__ = ["Command", "Option", "combined"]

Command = TypeVar("Command", bound=Callable[..., Any])


class Option(Protocol):
    """A decorator that adds an option, or several, to a command."""

    def __call__(self, command: Command, /) -> Command:
        """Return the command with the option."""
        ...


def combined(*options: Option) -> Option:
    """Return a decorator that adds all of these options, in this order in the help."""

    def decorate(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate
