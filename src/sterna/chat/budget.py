"""What one rendering of a template may spend, and the sizes of the values that it makes."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterable, Iterator, KeysView, Mapping, ValuesView
from contextvars import ContextVar
from typing import Any

from jinja2.runtime import LoopContext

MAX_CHARS = 4 << 20  # of the output and of any value; an item of a list counts as 8
MAX_SOURCE_CHARS = 128 << 10  # the largest public ones have about 30 thousand
MAX_CREATED = 32 * MAX_CHARS  # over all values of one rendering: what may be alive at once
MAX_PRODUCT = 16 * MAX_CHARS  # of the sizes of a call's arguments
MAX_STEPS = 1_000_000
MAX_SECONDS = 2.0
MAX_DEPTH = 64  # macro and recursive-loop calls within one another
MAX_LOOPS = 16  # within one another; Python's own limit is 20
MAX_INT_BITS = 4096
MAX_INT_ARGUMENT = 100_000  # 10**precision in `round`, a base, a width

#: A width of four digits, a width taken from an argument, a field within a field.
_WIDE_FORMAT = re.compile(r"\d{4}|\*|\{[^{}]*\{")


class OverBudget(Exception):
    """A limit of the sandbox, in words."""


class Budget:
    """What one rendering may still spend; OverBudget once it is gone."""

    def __init__(self) -> None:
        self.depth = self._steps = self._created = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Counts a step and looks at the clock."""
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise OverBudget(f"{MAX_STEPS} steps")
        if time.monotonic() > self._deadline:
            raise OverBudget(f"{MAX_SECONDS:g} seconds")

    def create(self, chars: int) -> None:
        """Counts a new value of so many characters."""
        if chars > MAX_CHARS:
            raise OverBudget(f"{MAX_CHARS} characters in a value")
        self._created += chars
        if self._created > MAX_CREATED:
            raise OverBudget(f"{MAX_CREATED} characters in all values")


_current: ContextVar[Budget] = ContextVar("budget")


def current() -> Budget:
    """The budget of the rendering under way in this thread."""
    return _current.get()


@contextlib.contextmanager
def budget() -> Iterator[None]:
    """A fresh budget for what runs within; running out of stack is OverBudget as well."""
    reset = _current.set(Budget())
    try:
        yield
    except RecursionError:
        raise OverBudget("the interpreter's recursion limit") from None
    finally:
        _current.reset(reset)


def weigh(value: object) -> tuple[int, int]:
    """(characters that printing `value` takes at least, 8 per item; number of items), bounded.

    An item that occurs twice counts twice, so a list doubled forty times is found out.
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


def allow(name: str, subject: object, arguments: Iterable[object]) -> None:
    """Refuses a call that can grow unless (size of the subject) x (of the rest) is bounded."""
    if name == "format" and isinstance(subject, str) and _WIDE_FORMAT.search(subject):
        raise OverBudget("a width of three digits in a format")
    if name == "int" and isinstance(subject, str) and len(subject) > 1000:
        raise OverBudget("1000 digits")  # int() is quadratic in them
    if _size(subject) * (1 + sum(map(_size, arguments))) > MAX_PRODUCT:
        raise OverBudget(f"{MAX_PRODUCT} characters in a call of {name}")


def checked(value: Any) -> Any:
    """`value` if it is small enough; what is computed lazily becomes a list."""
    left = current()
    if isinstance(value, str):
        left.create(len(value))
        return value
    if isinstance(value, (Iterator, KeysView, ValuesView)) or type(value) is type({}.items()):
        value = list(itertools.islice(value, MAX_CHARS // 8 + 1))
    if isinstance(value, (list, tuple, dict)):
        left.create(8 * weigh(value)[1])
    elif isinstance(value, int) and value.bit_length() > MAX_INT_BITS:
        raise OverBudget(f"{MAX_INT_BITS} bits in a number")
    return value


def text(value: object) -> str:
    """What printing `value` gives, counted if it is new."""
    if isinstance(value, str):
        return value
    printed = str(value)
    current().create(len(printed))
    return printed
