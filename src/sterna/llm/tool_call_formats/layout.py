"""`LayoutFormat`: calls that consist of fixed texts around a name and arguments of any form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from sterna.chat.calls import object_of
from sterna.engine.decoding.grammars import ToolCall
from sterna.engine.decoding.special_tokens import INDEX
from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.engine.decoding.tagged_arguments import ArgumentsForm, TaggedArguments
from sterna.llm.tool_call_formats.arguments_readers import ArgumentsReader, JsonReader
from sterna.llm.tool_call_formats.base import ToolCallFormat, ToolCallParser
from sterna.llm.tool_call_formats.json_calls import Head, JsonCall, json_call_of
from sterna.llm.tool_call_formats.layout_parser import LayoutParser
from sterna.llm.tool_call_formats.pieces import (
    NAME,
    SPACE,
    Pieces,
    Unfinished,
    match,
    offered,
    pieces_of,
    skipped,
)
from sterna.llm.tool_call_formats.pythonic import PYTHONIC
from sterna.llm.tool_call_formats.tagged_reader import TaggedReader

__all__ = ["NAME", "LayoutFormat", "spelled_arguments", "with_json_values"]

#: A mark with which a call may begin in an answer, as opposed to braces and words.
_MARK = re.compile(r"<.|\[[A-Z_]{3}")
#: Begins a mark that contains the name, such as <function=NAME>.
_OWN_MARK = re.compile(rf"<[^<>\s]+(?: name=\"|=){NAME}")
_NAMESPACED = re.compile(rf"functions\.{NAME}:{INDEX}|functions\.{NAME}")


class _Spelling(NamedTuple):
    """One way to begin a call: texts, and then the object that it is, if it is one.

    first: whether it may be the first of an answer.
    """

    pieces: Pieces
    json: JsonCall | None
    first: bool


@dataclass(frozen=True)
class LayoutFormat(ToolCallFormat):
    """Calls of the texts `begin` (with the holes NAME, ID and INDEX), arguments, and `end`.

    form: how arguments are written; None is JSON. reader: makes what reads them, given the text
    behind them and their schema; for forms other than JSON and tags. prints_values: whether the
    template prints values as Python does, instead of as JSON. writes: whether calls stand in the
    content of a message, since the template writes none. others: other spellings of `begin` that
    models write.
    """

    form: ArgumentsForm | None = None
    reader: Callable[[str, Mapping[str, Any]], ArgumentsReader] | None = field(
        default=None, compare=False
    )
    prints_values: bool = False
    writes: bool = False
    others: tuple[str, ...] = ()

    @property
    def marks(self) -> str:
        """All markers whose special tokens must reach the parser."""
        return "\n".join((super().marks, *self.others))

    def tool_call(self, name: str, schema: Mapping[str, Any], strict: bool) -> ToolCall:
        """Make the rule by which the engine constrains a call."""
        spelled = json.dumps(name, ensure_ascii=False)[1:-1] if _in_quotes(self.begin) else name
        return ToolCall(self.begin.replace(NAME, spelled), schema, self.end, strict, self.form)

    def parser(self, schemas: Mapping[str, Any] | None) -> ToolCallParser:
        """Make a parser for text that begins with one of `opens`."""
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
        raw = function.get("arguments")
        arguments = object_of(raw) if isinstance(raw, str) else raw or {}
        begin = self.begin.replace(NAME, function["name"]).replace(INDEX, str(index))
        return f"{begin}{spelled_arguments(self.form, arguments)}{self.end}"

    # ------------------------------------------------------------------------------- reading

    @cached_property
    def opens(self) -> tuple[str, ...]:
        """The texts with which calls may begin in an answer."""
        return tuple(dict.fromkeys(str(one.pieces[0]) for one in self._spellings if one.first))

    @cached_property
    def ends(self) -> tuple[str, ...]:
        """The texts that may stand behind the arguments of a call, before another one begins.

        They are in the order of the call's end, except that a longer one precedes its beginning.
        """
        end = self.end.partition("}")[2] if self._json else self.end
        texts = (end, self.frame.closes, self.frame.separator)
        pieces = (piece for text in texts for piece in pieces_of(text))
        marks = dict.fromkeys(piece for piece in pieces if piece is not SPACE)
        return (*marks, *(mark for mark in ";,]}" if self._json and mark not in marks))

    @cached_property
    def _json(self) -> JsonCall | None:
        """The keys of a call that is a JSON object."""
        call = json_call_of(self.begin)
        return call[1] if call else None

    @cached_property
    def _spellings(self) -> list[_Spelling]:
        """The ways to begin a call, the right one first."""
        own, opens = _OWN_MARK.search(self.begin), self.frame.opens
        begins = [opens + self.begin, *self.others, self.begin]
        if own:  # a call that lacks the mark around it
            begins.append(self.begin[own.start() :])
        spellings: dict[tuple[Any, ...], _Spelling] = {}
        for i, begin in enumerate(begins):
            before, call = json_call_of(begin) or (begin, None)
            if call is not None:  # a list, or a single call
                before = before.strip().removesuffix("[") or before.strip() or "{"
            pieces: list[Any] = pieces_of(_NAMESPACED.sub(NAME, before.lstrip()))
            if self._ends_with_name(begin):
                pieces = pieces[: pieces.index(NAME) + 1]
                pieces += [SPACE, self._after_name]
            may_open = i <= len(self.others) or _MARK.match(str(pieces[0])) is not None
            spellings.setdefault(tuple(pieces), _Spelling(pieces, call, may_open))
        if self._json:  # another call in the same marks
            spellings.setdefault(("{",), _Spelling(["{"], self._json, False))
        return list(spellings.values())

    def _ends_with_name(self, begin: str) -> bool:
        """Whether arguments follow a name at once, or behind white space that may be missing."""
        tagged = isinstance(self.form, TaggedArguments)
        return begin.endswith(NAME) or (tagged and begin.rstrip().endswith(NAME))

    @property
    def _after_name(self) -> tuple[str, ...]:
        form = self.form
        opens = form.opens.split("{}")[0] if isinstance(form, TaggedArguments) else "{"
        return tuple(mark.strip() for mark in (opens, self.end) if mark.strip())

    def head(
        self, text: str, at: int, names: Collection[str] | None, first: bool = True
    ) -> Head | None:
        """Match as `ToolCallFormat.head`."""
        unfinished = False
        for spelling in self._spellings:
            if first and not spelling.first:
                continue
            try:
                if head := self._matched(spelling, text, at, names):
                    return head
            except Unfinished:
                unfinished = True
        if unfinished:
            raise Unfinished
        return None

    def _matched(
        self, spelling: _Spelling, text: str, at: int, names: Collection[str] | None
    ) -> Head | None:
        matched = match(spelling.pieces, text, at)
        if matched is None:
            return None
        if spelling.json is None:
            name = offered(_unescaped(matched.name, self.begin), names)
            return None if name is None else Head(name, matched.end, matched.id)
        begin = at if spelling.pieces == ["{"] else skipped(text, matched.end)
        if text.startswith("[", begin):
            begin = skipped(text, begin + 1)
        head = spelling.json.head(text, begin, names)
        if head is None:
            return None
        return Head(head.name, begin if head.name is None else head.at, "", spelling.json)

    def arguments_reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """Make the reader of a call's arguments."""
        if self.reader:
            return self.reader(self.end or self.frame.separator or self.frame.closes, schema)
        if isinstance(self.form, TaggedArguments):
            return TaggedReader(self.form, self.ends, self.opens, schema)
        return JsonReader()


def spelled_arguments(form: ArgumentsForm | None, arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as a form writes them."""
    if form is None:
        return json.dumps(arguments, ensure_ascii=False)
    return form.arguments(arguments)


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
