"""`MessagesParser`: splits an answer that consists of several messages, each with a header."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from sterna.llm.output_parser import OutputParser
from sterna.llm.tool_call_formats.base import ToolCallFormat
from sterna.llm.tool_call_formats.json_calls import Head
from sterna.llm.tool_call_formats.pieces import Unfinished, skipped
from sterna.outputs import Delta

__all__ = ["MessagesParser"]

T = TypeVar("T")
#: Characters that a header may have.
HEADER_CHARS = 1024


class MessagesParser(OutputParser):
    """Parses an answer of `messages` of a format; `calls`: whether the request has tools."""

    def __init__(
        self,
        call_format: ToolCallFormat,
        calls: bool,
        parallel: bool = True,
        schemas: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(call_format, parallel, False, schemas)
        assert call_format.messages is not None
        self._format, self._messages, self._has_calls = call_format, call_format.messages, calls
        self._kind = ""  # the kind of the message that is being read; "" before its header
        self._last = ""  # the kind of the message before it

    def _step(self, deltas: list[Delta], final: bool) -> bool:
        if self._calls:
            return self._call(self._calls, deltas, final)
        if not self._kind:
            return self._header(deltas, final)
        marks = filter(None, (self._messages.ends, self._messages.starts))
        mark = self._until(deltas, self._kind, tuple(marks), final)
        if mark:
            self._kind, self._last = "", self._kind
        return bool(mark)

    def _header(self, deltas: list[Delta], final: bool) -> bool:
        """Read the text between two messages, and the header of the next one."""
        rest = self._held
        for mark in (self._messages.ends, self._messages.starts):
            if mark.startswith(rest) and not final and rest != mark:
                return False
            rest = rest.removeprefix(mark)
        try:
            called = self._tried(self._called, rest, final) if self._has_calls else None
            if called is not None:
                self._held = rest
                self._begin_calls(self._format)
                return True
            header = self._tried(self._format.text_header, rest, final)
        except Unfinished:
            return False
        if header:
            self._kind, self._held = header[0], rest[header[1] :]
            return True
        if not self._messages.starts and self._last:  # a text that contains the mark of an end
            mark = self._held[: len(self._held) - len(rest)]
            deltas.append(Delta(self._last, self._space + mark))
        self._kind, self._held = self._last or "content", rest
        return bool(rest)

    def _called(self, text: str) -> Head | None:
        return self._format.head(text, skipped(text, 0), self._schemas)

    @staticmethod
    def _tried(match: Callable[[str], T | None], text: str, final: bool) -> T | None:
        """Match a header; None if it cannot be one any more, Unfinished if it may become one."""
        try:
            return match(text)
        except Unfinished:
            if final or len(text) > HEADER_CHARS:
                return None
            raise

    def _after_calls(self) -> None:
        self._kind, self._last, self._gap = "", "content", False
