"""`MessagesParser`: splits an answer that consists of several messages, each with a header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sterna.llm.output_parser import OutputParser
from sterna.llm.tool_call_formats.base import ToolCallFormat
from sterna.outputs import Delta

__all__ = ["MessagesParser"]


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
        self._messages, self._has_calls = call_format.messages, calls
        self._kind = ""  # the kind of the message that is being read; "" before its header

    def _step(self, found: list[Delta], final: bool) -> bool:
        if self._calls:
            return self._call(self._calls, found, final)
        if not self._kind:
            return self._header(final)
        mark = self._until(found, self._kind, (self._messages.ends,), final)
        if mark:
            self._kind = ""
        return bool(mark)

    def _header(self, final: bool) -> bool:
        """Read the text between two messages, and the header of the next one."""
        messages = self._messages
        rest = self._held
        for mark in (messages.ends, messages.starts):
            if mark.startswith(rest) and not final and rest != mark:
                return False
            rest = rest.removeprefix(mark)
        headers = {messages.content: "content", **dict.fromkeys(messages.other, "content")}
        if messages.reasoning:
            headers[messages.reasoning] = "reasoning_content"
        for header, kind in headers.items():
            if rest.startswith(header):
                self._kind, self._held = kind, rest[len(header) :]
                return True
        if not final and any(header.startswith(rest) for header in headers):
            return False
        self._held = rest
        opens = self._call_format.opens if self._call_format else ()
        text = rest.lstrip()
        if self._has_calls and rest and (not opens or text.startswith(opens)):
            self._begin_calls()
        elif self._has_calls and not final and any(mark.startswith(text) for mark in opens):
            return False
        elif rest:
            self._kind = "content"
        return bool(rest)

    def _after_calls(self) -> None:
        self._kind, self._trims = "", False
