"""`ToolCallFormat`: how tool calls are written; `ToolCallParser`: reads them as they come."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sterna.engine.decoding.grammars import NO_FRAME, Frame, Messages, ToolCall

__all__ = ["Nesting", "ToolCallFormat", "ToolCallParser", "ToolCallPart"]

#: If a call's name does not come within this many characters, the call is read when complete.
HEAD_CHARS = 1024
#: Characters to skip between calls, and before the first of a list.
SEPARATORS, OPENINGS = " \t\r\n;,]", " \t\r\n["


class ToolCallPart(NamedTuple):
    """A piece of parsed calls.

    kind: "name" begins a call, "arguments" continues its JSON, "text" is not part of a call. id: of
    the call, if the model writes ids.
    """

    kind: str
    text: str
    id: str = ""


@dataclass(frozen=True)
class ToolCallFormat:
    """Calls as JSON objects with a name and arguments.

    Attributes:
        trigger: the first text or special token of a call.
        begin, end: the text around the arguments of a call; {} is the name as JSON.
        opens: how calls may begin in an answer, whose text has no special tokens.
        closes: how they end; "" is the end of the answer.
        key: the key of the arguments.
        within: whether the trigger is part of the JSON object.
        frame: the text around calls.
        messages: how the answer is divided, if it consists of messages with headers.
    """

    trigger: str
    begin: str
    end: str
    opens: tuple[str, ...]
    closes: str = ""
    key: str = "arguments"
    within: bool = False
    frame: Frame = NO_FRAME
    messages: Messages | None = None

    @property
    def marks(self) -> str:
        """All markers whose special tokens must reach the parser."""
        messages = self.messages
        headers = [messages.separator, messages.reasoning, messages.content] if messages else []
        frame = (self.frame.opens, self.frame.separator, self.frame.closes)
        return "\n".join([self.trigger, self.begin, self.end, *frame, *headers])

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with calls in the form that the chat template reads."""
        return message

    def tool_call(self, name: str, schema: Mapping[str, Any], strict: bool) -> ToolCall:
        """Make the rule by which the engine constrains a call of a tool. strict: see `ToolCall`."""
        return ToolCall(self.begin.replace("{}", json.dumps(name)), schema, self.end, strict)

    def tool_calls(self, name: str, schema: Mapping[str, Any], strict: bool) -> Iterator[ToolCall]:
        """Yield the rules of all ways to call a tool; arguments as for `tool_call`."""
        yield self.tool_call(name, schema, strict)

    def parser(self, schemas: Mapping[str, Any]) -> ToolCallParser:
        """Make a parser for text that begins with one of `opens`.

        schemas: of the arguments, by tool name, for formats that do not mark strings.
        """
        return JsonToolCallParser(self)

    @cached_property
    def head(self) -> re.Pattern[str]:
        """Matches a call up to its arguments, if they are an object right after the name."""
        kind, name = r'(?:"type"\s*:\s*"function"\s*,\s*)?', r'"name"\s*:\s*("(?:[^"\\]|\\.)*")'
        return re.compile(rf'\{{\s*{kind}{name}\s*,\s*"{self.key}"\s*:\s*(?=\{{)')


class ToolCallParser(ABC):
    """A state machine that parses calls; the text begins with what opens them.

    Each step consumes some of the held text and returns False if it needs more.

    Attributes:
        rest: the text after the calls; None while more may come.
        cut: whether the answer ended within a call.
    """

    def __init__(self, call_format: ToolCallFormat) -> None:
        self.call_format = call_format
        self.rest: str | None = None
        self.cut: bool = False
        self._held = ""
        self._step: Callable[[list[ToolCallPart], bool], bool] = self._open
        self._count = 0  # calls so far
        #: Consumed text that is plain text after all if no call follows.
        self._unsure = ""

    def feed(self, text: str, final: bool) -> list[ToolCallPart]:
        """Add text; return all parts that are certain by now. final: no more text follows."""
        self._held += text
        found: list[ToolCallPart] = []
        while self.rest is None and self._step(found, final):
            pass
        if final and self.rest is None:
            self._give_up(found)
        return found

    def _leave(self, rest: str) -> None:
        """End the calls before a text."""
        self._unsure, self._held, self.rest = "", "", rest

    def _open(self, found: list[ToolCallPart], final: bool) -> bool:
        trigger = "" if self.call_format.within else self.call_format.trigger
        if trigger and self._held.startswith(trigger):
            self._drop(len(trigger))
        self._step = self._between
        return True

    def _drop(self, count: int) -> None:
        """Consume text that is plain text after all if no call follows."""
        self._unsure += self._held[:count]
        self._held = self._held[count:]

    def _between(self, found: list[ToolCallPart], final: bool) -> bool:
        """Between calls: find the next one, or the end of all."""
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

    #: The first characters of a call.
    _mark = "{"

    @abstractmethod
    def _begin(self, found: list[ToolCallPart], final: bool) -> bool:
        """Parse the beginning of a call."""

    def _junk(self, found: list[ToolCallPart], final: bool) -> bool:
        """Skip to the end of the calls; this is plain text if there was no call."""
        before, closed, rest = self._held.partition(self.call_format.closes)
        if not closed:
            return False
        if self._unsure:
            found.append(ToolCallPart("text", self._unsure + before + closed))
        self._leave(rest)
        return True

    def _give_up(self, found: list[ToolCallPart]) -> None:
        """End without a call: the held text is plain text."""
        text = self._unsure + (self._held if self._unsure or not self.call_format.closes else "")
        if text:
            found.append(ToolCallPart("text", text))
        self._leave("")


class JsonToolCallParser(ToolCallParser):
    """Parses JSON objects; streams the arguments if the name comes first."""

    def __init__(self, call_format: ToolCallFormat) -> None:
        super().__init__(call_format)
        self._nesting, self._scanned = Nesting(), 0

    def _begin(self, found: list[ToolCallPart], final: bool) -> bool:
        self._nesting, self._scanned = Nesting(), 0
        self._step = self._head
        return True

    def _head(self, found: list[ToolCallPart], final: bool) -> bool:
        """Parse an object up to its arguments, or as a whole."""
        head = self.call_format.head.match(self._held) if len(self._held) <= HEAD_CHARS else None
        name = _json(head[1]) if head else None
        if head and isinstance(name, str):
            found.append(ToolCallPart("name", name))
            self._held, self._unsure = self._held[head.end() :], ""
            self._count += 1
            self._nesting = Nesting(1)
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
        """Return the parts of a complete object; None if it is not a call."""
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
        self.cut: bool = final and end < 0
        return end >= 0

    def _tail(self, found: list[ToolCallPart], final: bool) -> bool:
        """Skip the rest of an object after its arguments."""
        end = self._nesting.end(self._held, 0)
        self._held = "" if end < 0 else self._held[end:]
        if end >= 0:
            self._step = self._between
        return end >= 0


class Nesting:
    """Counts JSON's open braces and brackets outside of strings."""

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._quoted, self._escaped = depth, False, False

    def end(self, text: str, floor: int) -> int:
        """Return the index after which the text's depth falls to `floor`; -1 if it does not."""
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
    """Decode JSON; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
