"""Warnings, and the one tree of exceptions that Sterna raises on purpose.

    SternaError
    ├── ModelFormatError       a model's files are damaged, hostile or not what they claim to be
    ├── UnsupportedModelError  a sound model that this version cannot run
    ├── RequestError           an argument, a path or a setting given by the caller
    │   └── ContextError       a text that is longer than the context has room for
    ├── HubError               a model could not be fetched: network, rights, disk space
    ├── DiskError              an open file could not be read: the disk fails, a server is gone
    ├── UnsupportedCPUError    no kernel for this processor, or a forced one that it cannot run
    └── NonFiniteError         NaN or infinity in weights, scales or activations

Every message is one line, `what: rule, but got value; remedy`, safe to print on a terminal.
"""

from __future__ import annotations

import os
import reprlib
import warnings
from functools import partial
from typing import Any

__all__ = [
    "ContextError",
    "DiskError",
    "HubError",
    "ModelFormatError",
    "NonFiniteError",
    "RequestError",
    "SternaError",
    "UnsupportedCPUError",
    "UnsupportedModelError",
    "brief",
    "reason",
    "shown",
    "warn",
]

_MAX_VALUE_CHARS = 200  # a hostile file must not choose how long an error message is
_MAX_MESSAGE_CHARS = 4000  # and several values and names cannot either
_KEPT_END = 400  # the remedy is at the end


def _printable(text: str) -> str:
    # Names and values come from files: control characters could drive the user's terminal.
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


class _Shortened(reprlib.Repr):
    """Python's repr of a value, shortened before the whole repr is built."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = 50
        self.maxstring = self.maxother = _MAX_VALUE_CHARS

    def repr_int(self, x: int, level: int) -> str:
        return repr(x) if abs(x) < 1 << 128 else _of_huge(x)


def _of_huge(value: int) -> str:
    return f"an integer of {value.bit_length()} bits"  # str() of a huge int may itself raise


def _cut(text: str) -> str:
    text = _printable(text)
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


def brief(value: object) -> str:
    """Format a value for a message as `str` writes it, cut at 200 characters."""
    if isinstance(value, str):
        return _cut(value[: _MAX_VALUE_CHARS + 1])
    # Other types write their own repr, which may be long.
    return shown(value) if isinstance(value, (int, list, tuple, dict)) else _cut(str(value))


def shown(value: object) -> str:
    """Format a value for a message as `repr` writes it, cut at 200 characters."""
    return _cut(" ".join(_Shortened().repr(value).split("\n")))


def reason(error: BaseException) -> str:
    """Why something failed, for a message: the system's words without its numbers."""
    return brief(getattr(error, "strerror", None) or str(error) or type(error).__name__)


def warn(message: str, stacklevel: int = 2) -> None:
    """Give a RuntimeWarning; stacklevel counts from the function that calls this one, as 1."""
    warnings.warn(message, RuntimeWarning, stacklevel=stacklevel + 1)


class SternaError(Exception):
    """Base of every exception that Sterna raises on purpose; `str()` is one printable line."""

    def __str__(self) -> str:
        """Return the message as one printable line, whatever values it contains."""
        text = _printable(" ".join(super().__str__().splitlines()))
        if len(text) <= _MAX_MESSAGE_CHARS:
            return text
        return f"{text[: _MAX_MESSAGE_CHARS - _KEPT_END - 5]} ... {text[-_KEPT_END:]}"


class ModelFormatError(SternaError):
    """A model's file breaks a rule; the attributes name the place, the rule and the value.

    `file`: the path; `field`: the tensor, key or header field; `offset`: its place in bytes from
    the start of the file; `expected`, `got`: the rule and the value that broke it; `remedy`: how to
    solve the problem. All but `file` may be None.
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        field: str | None = None,
        expected: object = None,
        got: object = None,
        *,
        offset: int | None = None,
        remedy: str | None = None,
    ) -> None:
        """Values are shown in the message, shortened and without control characters."""
        self.file: str = os.fspath(file)
        self.field = field
        self.expected = expected
        self.got = got
        self.offset = offset
        self.remedy = remedy
        super().__init__(self._message())

    def _message(self) -> str:
        where = [_printable(self.file)]
        if self.field is not None:
            where.append(brief(self.field))
        rule = []
        if self.expected is not None:
            rule.append(f"expected {brief(self.expected)}")
        if self.got is not None:
            rule.append(f"{'but ' if rule else ''}got {brief(self.got)}")
        text = ": ".join([*where, ", ".join(rule) or "malformed"])
        if self.offset is not None:
            text += f" (at byte {brief(self.offset)})"
        return f"{text}; {_printable(self.remedy)}" if self.remedy else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the default would call the class with only the message."""
        made = partial(type(self), offset=self.offset, remedy=self.remedy)
        return made, (self.file, self.field, self.expected, self.got)


class UnsupportedModelError(SternaError):
    """A well-formed model whose architecture, option or weight format this version cannot run."""


class RequestError(SternaError):
    """An argument, path or setting from the caller that breaks a rule."""


class ContextError(RequestError):
    """A prompt or a text that has more tokens than the context, or than the pages for it."""


class HubError(SternaError):
    """A model could not be fetched from the Hub, through no fault of its name or its files.

    `reason`: "gated" (log in, or accept the licence), "offline", "network", "server" (it answers
    with an error) or "space" (of the disk).
    """

    def __init__(self, message: str, reason: str) -> None:
        """`reason`: one of the words above."""
        super().__init__(message)
        self.reason = reason

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle both arguments: the default would keep only the message."""
        return type(self), (self.args[0], self.reason)


class DiskError(SternaError):
    """The system could not give bytes of a file that was opened and has not changed.

    `file`: the path; `offset`: the place in bytes from the start of the file; `errno`: the system's
    number of the error. What did not need these bytes goes on, and a later try may succeed.
    """

    def __init__(self, file: str | os.PathLike[str], offset: int, errno: int) -> None:
        """`errno`: a number of the standard module of this name."""
        self.file: str = os.fspath(file)
        self.offset = offset
        self.errno = errno
        super().__init__(
            f"{_printable(self.file)}: byte {offset} must be readable, but got "
            f"{os.strerror(errno)}; check the disk, and try again"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: the default would keep only the message."""
        return type(self), (self.file, self.offset, self.errno)


class UnsupportedCPUError(SternaError):
    """No kernel runs on this processor, or the instruction set asked for is not available here."""


class NonFiniteError(SternaError):
    """NaN or infinity in weights, scales or activations; the message names the tensor or layer."""
