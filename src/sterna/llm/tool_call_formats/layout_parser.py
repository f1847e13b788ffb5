"""`LayoutParser`: reads calls of a layout as they come."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

from sterna.llm.tool_call_formats.arguments_readers import ArgumentsReader, JsonReader, Nesting
from sterna.llm.tool_call_formats.base import ToolCallParser, ToolCallPart
from sterna.llm.tool_call_formats.json_calls import Head, JsonCall
from sterna.llm.tool_call_formats.pieces import Unfinished, skipped

__all__ = ["LayoutParser"]

#: Begins an object of JSON.
_OBJECT = re.compile(r'\{\s*"')
#: If a call's name does not come within this many characters, the text is no call.
HEAD_CHARS = 1024


class Layout(Protocol):
    """The part of a `LayoutFormat` that a parser uses."""

    @property
    def opens(self) -> tuple[str, ...]:
        """The texts with which calls may begin in an answer."""

    @property
    def ends(self) -> tuple[str, ...]:
        """The texts that may stand behind the arguments of a call, before another one begins."""

    def head(
        self, text: str, at: int, names: Collection[str] | None, first: bool = True
    ) -> Head | None:
        """Match as `ToolCallFormat.head`."""

    def arguments_reader(self, schema: Mapping[str, Any]) -> ArgumentsReader:
        """Make the reader of a call's arguments."""


class LayoutParser(ToolCallParser):
    """Parses calls of a layout."""

    def __init__(self, call_format: Layout, schemas: Mapping[str, Any] | None) -> None:
        super().__init__()
        self._layout, self._schemas = call_format, schemas
        self._reader: ArgumentsReader = JsonReader()
        self._json: JsonCall | None = None  # of the call that is being read
        self._nesting = Nesting()
        self._ended = 0  # the end of all that ends the last call
        self._at = self._scanned = 0  # of an object: where it begins, up to where it was read
        self._count = 0  # calls so far

    def _next(self, parts: list[ToolCallPart], final: bool) -> bool:
        """Find the next call, or the end of all."""
        self._ended = 0
        if self._count and not self._skip_ends(final):
            return False
        at = skipped(self._held, self._ended)
        try:
            head = self._layout.head(self._held, at, self._schemas, not self._count)
        except Unfinished:
            if not final and len(self._held) - at < HEAD_CHARS:
                return False
            head = None
        if head is None:
            self._end(parts)
        elif head.name is None:
            self._nesting, self._at, self._scanned = Nesting(), head.at, head.at
            self._json, self._step = head.json, self._object
        else:
            self._begin(parts, head)
        return True

    def _skip_ends(self, final: bool) -> bool:
        """Find the position behind all that ends a call; False if more text must come first."""
        text = self._held
        while True:
            at = skipped(text, self._ended)
            mark = next((m for m in self._layout.ends if _may_stand(m, text, at)), None)
            if mark is None:
                return True
            if len(text) - at < len(mark):  # cut within a mark, or only white space
                self._ended = len(text) if final else self._ended
                return final
            self._ended = at + len(mark)

    def _end(self, parts: list[ToolCallPart]) -> None:
        """End the calls; a text that was none goes on behind its first mark."""
        if self._count:
            self._leave(self._held[self._ended :])
            return
        marks = (mark for mark in self._layout.opens if self._held.startswith(mark))
        mark = max(marks, key=len, default=self._held)
        if _OBJECT.match(self._held):
            self._nesting, self._step = Nesting(), self._plain
            return
        parts.append(ToolCallPart("text", mark))
        self._leave(self._held[len(mark) :])

    def _plain(self, parts: list[ToolCallPart], final: bool) -> bool:
        """Pass on an object that is no call, whose members are none either."""
        end = self._nesting.end(self._held, 0)
        text = self._held if end < 0 else self._held[:end]
        if text:
            parts.append(ToolCallPart("text", text))
        self._held = self._held[len(text) :]
        if end >= 0:
            self._leave(self._held)
        return end >= 0

    def _begin(self, parts: list[ToolCallPart], head: Head) -> None:
        assert head.name is not None
        parts.append(ToolCallPart("name", head.name, head.id))
        self._held, self._json = self._held[head.at :], head.json
        self._count += 1
        schema = (self._schemas or {}).get(head.name)
        self._reader = self._layout.arguments_reader(schema if isinstance(schema, dict) else {})
        self._step = self._arguments

    def _arguments(self, parts: list[ToolCallPart], final: bool) -> bool:
        text, consumed, done = self._reader.read(self._held, final)
        if text:
            parts.append(ToolCallPart("arguments", text))
        self._held = self._held[consumed:]
        self.cut: bool = final and not done
        if done:
            self._nesting = Nesting(1)  # within the object of a call
            self._step = self._next if self._json is None else self._members
        return done

    def _members(self, parts: list[ToolCallPart], final: bool) -> bool:
        """Look whether the object of a call goes on; models forget its brace."""
        rest = self._held.lstrip()
        if rest or final:
            self._step = self._rest if rest.startswith((",", "}")) else self._next
        return bool(rest or final)

    def _rest(self, parts: list[ToolCallPart], final: bool) -> bool:
        """Skip what an object has behind its arguments."""
        end = self._nesting.end(self._held, 0)
        self._held = "" if end < 0 else self._held[end:]
        self._step = self._rest if end < 0 else self._next
        return end >= 0

    def _object(self, parts: list[ToolCallPart], final: bool) -> bool:
        """Read a call whose name does not come before its arguments, once it is whole."""
        end = self._nesting.end(self._held[self._scanned :], 0)
        if end < 0 and not final:
            self._scanned = len(self._held)
            return False
        end += self._scanned
        assert self._json is not None
        call = self._json.whole(self._held[self._at : end], self._schemas) if end > 0 else None
        if call is None:
            self._end(parts)
            return True
        parts += [ToolCallPart("name", call[0]), ToolCallPart("arguments", call[1])]
        self._held, self._json, self._step = self._held[end:], None, self._next
        self._count += 1
        return True


def _may_stand(mark: str, text: str, at: int) -> bool:
    """Whether a mark stands at a position, or its beginning at the text's end."""
    return text.startswith(mark, at) or mark.startswith(text[at:])
