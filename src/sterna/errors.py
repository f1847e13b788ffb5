"""The one tree of exceptions: everything that Sterna raises on purpose is a `SternaError`.

    SternaError
    ├── ModelFormatError       a model's files are damaged, hostile or not what they claim to be
    ├── UnsupportedModelError  a sound model that this version cannot run
    ├── RequestError           an argument, a path or a setting given by the caller
    ├── HubError               a model could not be fetched: network, rights, disk space
    ├── UnsupportedCPUError    no kernel for this processor, or a forced one that it cannot run
    └── NonFiniteError         NaN or infinity in weights, scales or activations

Every message is one line, `what: rule, but got value; remedy`, safe to print on a terminal.
"""

from __future__ import annotations

import os
from typing import Any

__all__ = [
    "HubError",
    "ModelFormatError",
    "NonFiniteError",
    "RequestError",
    "SternaError",
    "UnsupportedCPUError",
    "UnsupportedModelError",
]

_MAX_VALUE_CHARS = 200  # a hostile file must not choose how long an error message is


def _printable(text: str) -> str:
    # Names and values come from files: control characters could drive the user's terminal.
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in text
    )


def _shown(value: object) -> str:
    if isinstance(value, int) and abs(value) >= 1 << 128:
        return f"an integer of {value.bit_length()} bits"  # str() of a huge int may itself raise
    text = _printable(value if isinstance(value, str) else str(value))
    return text if len(text) <= _MAX_VALUE_CHARS else text[: _MAX_VALUE_CHARS - 3] + "..."


class SternaError(Exception):
    """Base of every exception that Sterna raises on purpose; `str()` is one printable line."""

    def __str__(self) -> str:
        """The message as one printable line, whatever values went into it."""
        return _printable(" ".join(super().__str__().splitlines()))


class ModelFormatError(SternaError):
    """A model's file breaks a rule; the attributes name the place, the rule and the value.

    `file`: the path; `field`: the tensor, key or header field; `offset`: its place in bytes from
    the start of the file; `expected`, `got`: the rule and the value that broke it; `remedy`: what
    to do about it. All but `file` may be None.
    """

    def __init__(
        self,
        *,
        file: str | os.PathLike[str],
        field: str | None = None,
        expected: object = None,
        got: object = None,
        offset: int | None = None,
        remedy: str | None = None,
    ) -> None:
        """Values are shown in the message, shortened and without control characters."""
        self.file = os.fspath(file)
        self.field = field
        self.expected = expected
        self.got = got
        self.offset = offset
        self.remedy = remedy
        super().__init__(self._message())

    def _message(self) -> str:
        where = [_printable(self.file)]
        if self.field is not None:
            where.append(_shown(self.field))
        rule = []
        if self.expected is not None:
            rule.append(f"expected {_shown(self.expected)}")
        if self.got is not None:
            rule.append(f"{'but ' if rule else ''}got {_shown(self.got)}")
        text = ": ".join([*where, ", ".join(rule) or "malformed"])
        if self.offset is not None:
            text += f" (at byte {_shown(self.offset)})"
        return f"{text}; {_printable(self.remedy)}" if self.remedy else text

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the keywords: the default would call the class with the message alone."""
        values = {
            "file": self.file,
            "field": self.field,
            "expected": self.expected,
            "got": self.got,
            "offset": self.offset,
            "remedy": self.remedy,
        }
        return _rebuild, (type(self), values)


def _rebuild(kind: type[ModelFormatError], values: dict[str, Any]) -> ModelFormatError:
    return kind(**values)


class UnsupportedModelError(SternaError):
    """A well-formed model whose architecture, option or weight format this version cannot run."""


class RequestError(SternaError):
    """An argument, path or setting from the caller that breaks a rule."""


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
        """Pickles both arguments: the default would keep the message alone."""
        return type(self), (self.args[0], self.reason)


class UnsupportedCPUError(SternaError):
    """No kernel runs on this processor, or the instruction set asked for is not available here."""


class NonFiniteError(SternaError):
    """NaN or infinity in weights, scales or activations; the message names the tensor or layer."""
