"""The budget of one rendering of a template, and the sizes of the values that it makes."""

from __future__ import annotations

import contextlib
import itertools
import re
import sys
import time
from collections.abc import Iterator, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2.runtime import LoopContext

from sterna.chat.limits import (
    MAX_CHARS,
    MAX_CREATED,
    MAX_INT_ARGUMENT,
    MAX_INT_BITS,
    MAX_ITERATED,
    MAX_PIECES,
    MAX_PRODUCT,
    MAX_SECONDS,
    MAX_STEPS,
    MAX_WORK,
)

#: A width of four digits, a width taken from an argument, a field within a field.
_WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")
_NUMBER = re.compile(r"\d+")
#: Calls whose results stay short, but whose time can grow with the product of the sizes.
_SLOW = {"lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip", "trim"}


class OverBudget(Exception):
    """A rendering exceeds a limit of the sandbox, which the message names."""


class Budget:
    """The rest of a rendering's budget; its methods raise OverBudget once nothing remains."""

    def __init__(self) -> None:
        self.depth = self._steps = self._created = 0
        self._deadline = time.thread_time() + MAX_SECONDS

    def step(self, count: int = 1) -> None:
        """Count steps and look at the clock."""
        self._steps += count
        if self._steps > MAX_STEPS:
            raise OverBudget(f"{MAX_STEPS} steps")
        if time.thread_time() > self._deadline:
            raise OverBudget(f"{MAX_SECONDS:g} seconds")

    def create(self, value: object) -> None:
        """Count a new value's bytes, without the values that it refers to."""
        self.spend(sys.getsizeof(value))

    def spend(self, size: int) -> None:
        """Count bytes of memory."""
        self._created += size
        if self._created > MAX_CREATED:
            raise OverBudget(f"{MAX_CREATED} bytes of values")


_current: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    """Return the budget of this thread's current rendering."""
    return _current.get()


@contextlib.contextmanager
def spending() -> Iterator[None]:
    """Give the code in the block a fresh budget; a stack overflow raises OverBudget as well."""
    reset = _current.set(Budget())
    try:
        yield
    except RecursionError:
        raise OverBudget("the interpreter's recursion limit") from None
    finally:
        _current.reset(reset)


def weigh(value: object) -> tuple[int, int]:
    """Return (characters, items) of a value: at least those that printing it takes, 8 per item.

    An item that occurs twice counts twice, so a list doubled forty times is found out. Raises
    OverBudget for more than MAX_CHARS.
    """
    chars, items, pending = 0, 0, [value]
    while pending:
        item = pending.pop()
        items += 1
        chars += 8
        if isinstance(item, str):
            chars += len(item)
        elif isinstance(item, Mapping):
            pending.extend(item.keys())
            pending.extend(item.values())
        elif isinstance(item, (list, tuple)):
            pending.extend(item)
        elif isinstance(item, LoopContext):
            raise OverBudget("the attributes of a loop")  # as a value it may hold anything
        if chars + 8 * len(pending) > MAX_CHARS:
            raise OverBudget(f"{MAX_CHARS} characters in a value")
        if items % 1024 == 0:
            current().step()
    return chars, items


def _size(argument: object) -> int:
    if isinstance(argument, int):
        if abs(argument) > MAX_INT_ARGUMENT:
            raise OverBudget(f"{MAX_INT_ARGUMENT} as an argument")
        return abs(argument) + 1
    if isinstance(argument, str):
        return len(argument) + 1
    return weigh(argument)[0]


def allow(name: str, subject: object, arguments: Sequence[object]) -> None:
    """Refuse a call that can grow unless (size of the subject) x (of the rest) is bounded."""
    if name == "replace" and isinstance(subject, str):
        return _allow_replace(subject, arguments)
    if name in ("int", "float") and isinstance(subject, str) and len(subject) > 1000:
        raise OverBudget("1000 digits")  # int() is quadratic in them
    size = _size(subject)
    if name == "format" and isinstance(subject, str):
        if _WIDE_FORMAT.search(subject):
            raise OverBudget("a width of three digits in a format")
        size += sum(map(int, _NUMBER.findall(subject)))  # widths and precisions
    if name == "join":
        for parts in (subject, *arguments):
            iterated(parts)
    if size * (1 + sum(map(_size, arguments))) > (MAX_WORK if name in _SLOW else MAX_PRODUCT):
        raise OverBudget(f"{MAX_PRODUCT} characters in a call of {name}")


def allow_pieces(subject: str, arguments: Sequence[object]) -> None:
    """Refuse to split a text into very many pieces."""
    separator = arguments[0] if arguments else None
    pieces = len(subject) // 2 if not isinstance(separator, str) else subject.count(separator)
    if pieces > MAX_PIECES:
        raise OverBudget(f"{MAX_PIECES} pieces of a text")


def _allow_replace(subject: str, arguments: Sequence[object]) -> None:
    old, new = (str(text(part)) for part in (*arguments, "", "")[:2])
    grown = len(subject) + (subject.count(old) + 1) * max(0, len(new) - len(old))
    if grown > MAX_CHARS:
        raise OverBudget(f"{MAX_CHARS} characters in a value")


def iterated(value: object) -> None:
    """Refuse a long text that a call would take apart."""
    if isinstance(value, str) and len(value) > MAX_ITERATED:
        raise OverBudget(f"{MAX_ITERATED} characters to be taken one by one")


def checked(value: Any, fresh: bool = True) -> Any:
    """Return `value` if it is small enough, or raise OverBudget; a lazy iterable becomes a list.

    fresh: count its items as new values, too.
    """
    left = current()
    if isinstance(value, str):
        if len(value) > MAX_CHARS:
            raise OverBudget(f"{MAX_CHARS} characters in a value")
        left.create(value)
        return value
    if isinstance(value, (Iterator, KeysView, ValuesView)) or type(value) is type({}.items()):
        value = list(itertools.islice(value, MAX_CHARS // 8 + 1))
    if isinstance(value, (list, tuple, dict)):
        weigh(value)
        left.create(value)
        if fresh:
            left.spend(sum(map(sys.getsizeof, value)))
    elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise OverBudget(f"{MAX_INT_BITS} bits in a number")
    elif not isinstance(value, (int, float)) and value is not None:
        left.spend(1024)  # a namespace, a macro, a loop
    return value


def text(value: object) -> str:
    """Return what printing `value` gives, and count it if it is new."""
    if isinstance(value, str):
        return value
    printed = str(value)
    current().create(printed)
    return printed
