"""`Form`: where calls begin and end in an answer, and `Calls`, which reads them as they come."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sterna.engine.constraints import ToolCall

__all__ = ["ToolCallFormat", "ToolCallParser", "ToolCallPart"]

#: A call whose name is not told within so many characters is read once it is whole.
HEAD_CHARS = 1024
#: Between calls, and before the first of a list.
SEPARATORS, OPENINGS = " \t\r\n;,]", " \t\r\n["


class ToolCallPart(NamedTuple):
    """Of calls: "name" begins one, "arguments" goes on with its JSON; "text" belongs to none."""

    kind: str
    text: str


@dataclass(frozen=True)
class ToolCallFormat:
    """Calls as JSON objects of a name and arguments.

    trigger: what the model writes first, text or a special token. begin, end: around the arguments
    of a call, {} for the name as JSON. opens: the texts with which calls begin in an answer, where
    special tokens are left out; closes: the text that ends them, none: the end of the answer. key:
    of the arguments. within: whether the trigger is a part of the object.
    """

    trigger: str
    begin: str
    end: str
    opens: tuple[str, ...]
    closes: str = ""
    key: str = "arguments"
    within: bool = False

    def tool_call(self, name: str, schema: Mapping[str, Any], strict: bool) -> ToolCall:
        """What the engine lets an answer write of a tool's call. strict: of `ToolCall`."""
        return ToolCall(self.begin.replace("{}", json.dumps(name)), schema, self.end, strict)

    def parser(self, schemas: Mapping[str, Any]) -> ToolCallParser:
        """A reader of what begins with one of `opens`. schemas: of arguments, by the tools' names,
        where they tell a text from a number."""
        return JsonToolCallParser(self)

    @cached_property
    def head(self) -> re.Pattern[str]:
        """A call up to its arguments, where they are an object and come right behind the name."""
        kind, name = r'(?:"type"\s*:\s*"function"\s*,\s*)?', r'"name"\s*:\s*("(?:[^"\\]|\\.)*")'
        return re.compile(rf'\{{\s*{kind}{name}\s*,\s*"{self.key}"\s*:\s*(?=\{{)')


class ToolCallParser(ABC):
    """Reads calls from the text that opens them on, a step at a time.

    A step takes something of what is held, and is False where that waits for more. rest: what
    comes behind the calls, None as long as they may go on. cut: whether the answer has ended
    within a call.
    """

    def __init__(self, call_format: ToolCallFormat) -> None:
        self.call_format = call_format
        self.rest: str | None = None
        self.cut = False
        self._held = ""
        self._step: Callable[[list[ToolCallPart], bool], bool] = self._open
        self._count = 0  # of calls that were told
        #: What is text should no call come of it.
        self._unsure = ""

    def feed(self, text: str, final: bool) -> list[ToolCallPart]:
        """What the text so far is sure to be; final: nothing follows."""
        self._held += text
        found: list[ToolCallPart] = []
        while self.rest is None and self._step(found, final):
            pass
        if final and self.rest is None:
            self._give_up(found)
        return found

    def _open(self, found: list[ToolCallPart], final: bool) -> bool:
        trigger = "" if self.call_format.within else self.call_format.trigger
        if trigger and self._held.startswith(trigger):
            self._drop(len(trigger))
        self._step = self._between
        return True

    def _drop(self, count: int) -> None:
        """Passes over what is text should no call come of it."""
        self._unsure += self._held[:count]
        self._held = self._held[count:]

    def _between(self, found: list[ToolCallPart], final: bool) -> bool:
        """What comes before a call, or ends them all."""
        rest, closes = (
            self._held.lstrip(SEPARATORS if self._count else OPENINGS),
            self.call_format.closes,
        )
        self._drop(len(self._held) - len(rest))
        if self._count:
            self._unsure = ""
        unsure = (mark for mark in (closes, self._mark) if mark != rest and mark.startswith(rest))
        if not rest or (not final and any(unsure)):
            return False
        if rest.startswith(self._mark):
            self._step = self._begin
        elif closes:
            self._step = self._junk
        else:
            self._give_up(found)
        return True

    #: What a call begins with.
    _mark = "{"

    @abstractmethod
    def _begin(self, found: list[ToolCallPart], final: bool) -> bool:
        """A call from its mark on."""

    def _junk(self, found: list[ToolCallPart], final: bool) -> bool:
        """Up to what closes the calls: text where none came of it, else nothing."""
        before, closed, rest = self._held.partition(self.call_format.closes)
        if not closed:
            return False
        if self._unsure:
            found.append(ToolCallPart("text", self._unsure + before + closed))
        self._unsure, self._held, self.rest = "", "", rest
        return True

    def _give_up(self, found: list[ToolCallPart]) -> None:
        """What is held is no call."""
        text = self._unsure + (self._held if self._unsure or not self.call_format.closes else "")
        if text:
            found.append(ToolCallPart("text", text))
        self._unsure, self._held, self.rest = "", "", ""


class JsonToolCallParser(ToolCallParser):
    """Objects of a name and arguments, told as they come where the name comes first."""

    def __init__(self, call_format: ToolCallFormat) -> None:
        super().__init__(call_format)
        self._nesting, self._scanned = _Nesting(), 0

    def _begin(self, found: list[ToolCallPart], final: bool) -> bool:
        self._nesting, self._scanned = _Nesting(), 0
        self._step = self._head
        return True

    def _head(self, found: list[ToolCallPart], final: bool) -> bool:
        """An object up to its arguments, or to its end."""
        head = self.call_format.head.match(self._held) if len(self._held) <= HEAD_CHARS else None
        name = _json(head[1]) if head else None
        if head and isinstance(name, str):
            found.append(ToolCallPart("name", name))
            self._held, self._unsure = self._held[head.end() :], ""
            self._count += 1
            self._nesting = _Nesting(1)
            self._step = self._arguments
            return True
        end = self._nesting.end(self._held[self._scanned :], 0)
        if end < 0:
            self._scanned = len(self._held)
            return False
        end += self._scanned
        call = self._whole(self._held[:end])
        if call is None:
            self._drop(end)
            self._step = self._junk
            if not self.call_format.closes:
                self._give_up(found)
            return True
        found += call
        self._held, self._unsure = self._held[end:], ""
        self._count += 1
        self._step = self._between
        return True

    def _whole(self, text: str) -> list[ToolCallPart] | None:
        """A call that is there as a whole; None where an object is none."""
        value = _json(text)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        given = value.get(self.call_format.key, {})
        arguments = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        return [ToolCallPart("name", value["name"]), ToolCallPart("arguments", arguments)]

    def _arguments(self, found: list[ToolCallPart], final: bool) -> bool:
        end = self._nesting.end(self._held, 1)
        text = self._held if end < 0 else self._held[:end]
        if text:
            found.append(ToolCallPart("arguments", text))
        self._held = self._held[len(text) :]
        if end >= 0:
            self._step = self._tail
        self.cut = final and end < 0
        return end >= 0

    def _tail(self, found: list[ToolCallPart], final: bool) -> bool:
        """What an object has behind its arguments."""
        end = self._nesting.end(self._held, 0)
        self._held = "" if end < 0 else self._held[end:]
        if end >= 0:
            self._step = self._between
        return end >= 0


class _Nesting:
    """Follows JSON's braces and brackets, those in strings left out."""

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._quoted, self._escaped = depth, False, False

    def end(self, text: str, floor: int) -> int:
        """Behind where more text comes down to a depth; -1 where it does not."""
        for i, c in enumerate(text):
            if self._escaped:
                self._escaped = False
            elif c == "\\":
                self._escaped = self._quoted
            elif c == '"':
                self._quoted = not self._quoted
            elif not self._quoted and c in "{[":
                self._depth += 1
            elif not self._quoted and c in "}]":
                self._depth -= 1
                if self._depth <= floor:
                    return i + 1
        return -1


def _json(text: str) -> Any:
    """A value; None for a text that is no JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
