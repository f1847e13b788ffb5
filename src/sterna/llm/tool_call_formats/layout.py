"""`LayoutFormat`: calls that consist of fixed texts around a name and arguments of any form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sterna.chat.calls import object_of
from sterna.engine.decoding.grammars import ToolCall
from sterna.engine.decoding.special_tokens import ID, INDEX
from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.engine.decoding.tagged_arguments import ArgumentsForm, TaggedArguments
from sterna.llm.tool_call_formats.arguments_readers import (
    ArgumentsReader,
    JsonReader,
    TaggedReader,
)
from sterna.llm.tool_call_formats.base import (
    HEAD_CHARS,
    ToolCallFormat,
    ToolCallParser,
    ToolCallPart,
)
from sterna.llm.tool_call_formats.pythonic import PYTHONIC

__all__ = ["NAME", "LayoutFormat", "with_json_values"]

#: Stands for the name in the texts of a layout.
NAME = "\ue002"
_GROUPS = {NAME: r"(?P<name>[^\n]{1,256}?)", ID: r"(?P<id>[A-Za-z0-9_.:-]{1,64})", INDEX: r"\d+"}
_HOLES = re.compile(f"([{ID}{INDEX}{NAME}])")
_SPACE = " \t\r\n"


@dataclass(frozen=True)
class LayoutFormat(ToolCallFormat):
    """Calls of the texts `begin` (with the holes NAME, ID and INDEX), arguments, and `end`.

    form: how arguments are written; None is JSON. reader: makes what reads them, given the text
    behind them and their schema; for forms other than JSON and tags. prints_values: whether the
    template prints values as Python does, instead of as JSON. writes: whether calls stand in the
    content of a message, since the template writes none.
    """

    form: ArgumentsForm | None = None
    reader: Callable[[str, Mapping[str, Any]], ArgumentsReader] | None = field(
        default=None, compare=False
    )
    prints_values: bool = False
    writes: bool = False

    def tool_call(self, name: str, schema: Mapping[str, Any], strict: bool) -> ToolCall:
        """Make the rule by which the engine constrains a call."""
        spelled = json.dumps(name, ensure_ascii=False)[1:-1] if _in_quotes(self.begin) else name
        return ToolCall(self.begin.replace(NAME, spelled), schema, self.end, strict, self.form)

    def parser(self, schemas: Mapping[str, Any]) -> ToolCallParser:
        """Make a parser for text that begins with the trigger."""
        return LayoutParser(self, schemas)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Spell values of arguments as JSON where the template would print them as Python does."""
        if isinstance(self.form, SpelledValues) and self.form.text is None and not self.writes:
            return _with_arguments(message, _escaped)
        if self.prints_values:
            return with_json_values(message)
        return self._written(message) if self.writes else message

    def _written(self, message: dict[str, Any]) -> dict[str, Any]:
        """Write a message's calls into its content."""
        calls = message.get("tool_calls")
        if not isinstance(calls, list) or not calls:
            return message
        made = [self._call(i, call.get("function", call)) for i, call in enumerate(calls)]
        text = f"{self.frame.opens}{self.frame.separator.join(made)}{self.frame.closes}"
        others = {key: value for key, value in message.items() if key != "tool_calls"}
        return {**others, "content": f"{message.get('content') or ''}{text}"}

    def _call(self, index: int, function: Mapping[str, Any]) -> str:
        given = function.get("arguments")
        arguments = object_of(given) if isinstance(given, str) else given or {}
        begin = self.begin.replace(NAME, function["name"]).replace(INDEX, str(index))
        if isinstance(self.form, SpelledValues):
            return f"{begin}{self.form.arguments(arguments)}{self.end}"
        return f"{begin}{json.dumps(arguments, ensure_ascii=False)}{self.end}"

    def arguments_reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """Make the reader of a call's arguments."""
        after = self.end or self.frame.separator or self.frame.closes
        if self.reader:
            return self.reader(after, schema)
        if isinstance(self.form, TaggedArguments):
            return TaggedReader(self.form, after, schema)
        return JsonReader()

    @cached_property
    def head(self) -> re.Pattern[str]:
        """Matches a call up to its arguments."""
        pattern, seen = "", False
        for part in _HOLES.split(self.begin.lstrip(_SPACE)):
            if part == NAME and seen:
                pattern += r"(?P=name)"
            else:
                pattern += _GROUPS.get(part, re.escape(part))
            seen = seen or part == NAME
        if self.begin.endswith(NAME):  # arguments follow at once
            form = self.form
            opens = form.opens.split("{}")[0] if isinstance(form, TaggedArguments) else "{"
            marks = "|".join(re.escape(mark.lstrip(_SPACE)) for mark in (opens, self.end) if mark)
            pattern += rf"(?=\s*(?:{marks}))"
        return re.compile(pattern)


def with_json_values(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message with values of arguments as texts, JSON where they are no texts."""
    return _with_arguments(
        message, lambda v: v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)
    )


def _escaped(value: Any) -> Any:
    """Return a text with Python's escapes, for templates that print it between quotes."""
    return PYTHONIC.spelled(value)[1:-1] if isinstance(value, str) else value


def _with_arguments(message: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a message with each argument of its calls changed."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    changed = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(function, dict) and isinstance(arguments, dict):
            made = {name: change(value) for name, value in arguments.items()}
            call = {**call, "function": {**function, "arguments": made}}
        changed.append(call)
    return {**message, "tool_calls": changed}


class LayoutParser(ToolCallParser):
    """Parses calls of a layout."""

    def __init__(self, call_format: LayoutFormat, schemas: Mapping[str, Any]) -> None:
        super().__init__(call_format)
        self._layout, self._schemas = call_format, schemas
        self._reader: ArgumentsReader = JsonReader()
        self._whole = ""  # the text from the first mark on, as long as no call has begun

    def _open(self, found: list[ToolCallPart], final: bool) -> bool:
        opens = self._layout.frame.opens.strip(_SPACE)
        if len(self._held) < len(opens) and not final:
            return False
        if opens and self._held.startswith(opens):
            self._drop(len(opens))
        self._step = self._between
        return True

    def _between(self, found: list[ToolCallPart], final: bool) -> bool:
        frame, rest = self._layout.frame, self._held.lstrip(_SPACE)
        closes, separator = frame.closes.strip(_SPACE), frame.separator.strip(_SPACE)
        if self._count and closes and rest.startswith(closes):
            self._leave(rest[len(closes) :])
            return True
        if self._count and separator and rest.startswith(separator):
            rest = rest[len(separator) :].lstrip(_SPACE)
        if self._layout.head.match(rest):
            self._drop(len(self._held) - len(rest))
            self._step = self._begin
            return True
        if not final and self._may_go_on(rest):
            return False
        self._end(found)
        return True

    def _may_go_on(self, rest: str) -> bool:
        """Whether more text can make a call of the rest."""
        frame = self._layout.frame
        start = _HOLES.split(self._layout.begin.lstrip(_SPACE))[0]
        marks = [start]
        if self._count:
            marks += [frame.closes.strip(_SPACE), frame.separator.strip(_SPACE)]
        if any(mark.startswith(rest) for mark in marks if mark):
            return True
        return rest.startswith((start, *self._layout.opens)) and len(rest) < HEAD_CHARS

    def _end(self, found: list[ToolCallPart]) -> None:
        """End the calls; the held text is content."""
        if self._count:
            self._leave("" if self.cut else self._held)
        else:
            found.append(ToolCallPart("text", self._unsure + self._held))
            self._leave("")

    def _begin(self, found: list[ToolCallPart], final: bool) -> bool:
        head = self._layout.head.match(self._held)
        assert head is not None
        groups = head.groupdict()
        name = _unescaped(groups["name"], self._layout.begin)
        found.append(ToolCallPart("name", name, groups.get("id") or ""))
        self._held, self._unsure, self._count = self._held[head.end() :], "", self._count + 1
        self._reader = self._layout.arguments_reader(self._schemas.get(name) or {})
        self._step = self._arguments
        return True

    def _arguments(self, found: list[ToolCallPart], final: bool) -> bool:
        text, consumed, done = self._reader.read(self._held, final)
        if text:
            found.append(ToolCallPart("arguments", text))
        self._held = self._held[consumed:]
        self.cut: bool = final and not done
        if done:
            self._step = self._tail
        return done

    def _tail(self, found: list[ToolCallPart], final: bool) -> bool:
        """Skip the text after the arguments; the answer may end before it."""
        after, rest = self._layout.end.strip(_SPACE), self._held.lstrip(_SPACE)
        pattern = "".join(_GROUPS.get(p, re.escape(p)) for p in _HOLES.split(after))
        matched = re.match(pattern, rest)
        if matched is None and not final and len(rest) <= len(after) + 64 * (pattern != after):
            plain = _HOLES.split(after)[0]
            if plain.startswith(rest) or rest.startswith(plain):
                return False
        if matched:
            self._held = rest[matched.end() :]
        self._step = self._between
        return True

    def _give_up(self, found: list[ToolCallPart]) -> None:
        self._end(found)


def _unescaped(name: str, begin: str) -> str:
    """Return a name, whose quotes JSON may have escaped."""
    if _in_quotes(begin):
        try:
            return str(json.loads(f'"{name}"'))
        except ValueError:
            return name
    return name


def _in_quotes(begin: str) -> bool:
    return f'"{NAME}"' in begin
