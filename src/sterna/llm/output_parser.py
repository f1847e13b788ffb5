"""`OutputParser`: splits an answer's text into reasoning, content and tool calls, as it comes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sterna.chat.reasoning import ReasoningMarks
from sterna.outputs import Delta

if TYPE_CHECKING:
    from sterna.llm.tool_call_formats.base import ToolCallFormat, ToolCallParser, ToolCallPart

__all__ = ["OutputParser"]


class OutputParser:
    """Parses one answer. Streams and whole texts go through the same steps.

    call_format: the format of tool calls; None without tools. parallel: whether several calls are
    allowed. opened: whether the prompt has begun the reasoning. schemas: JSON schemas of the tools'
    arguments, by name. marks: around the reasoning.
    """

    def __init__(
        self,
        call_format: ToolCallFormat | None = None,
        parallel: bool = True,
        opened: bool = False,
        schemas: Mapping[str, Any] | None = None,
        marks: ReasoningMarks | None = None,
    ) -> None:
        marks = marks or ReasoningMarks()
        self._open, self._close = marks.opens.strip(), marks.closes.strip()
        self._dropped = marks.dropped
        self._schemas = schemas or {}
        self._call_format, self._parallel = call_format, parallel
        self._reasoning = opened
        self._begun = self._trims = self._reasoning
        self._calls: ToolCallParser | None = None
        self._held = ""
        self._done = False  # drop the text after the only tool call allowed
        self._count = 0
        self._cut = False

    @property
    def has_tool_calls(self) -> bool:
        """Whether the answer has tool calls, all of them complete."""
        return self._count > 0 and not self._cut

    @property
    def unread(self) -> int:
        """The characters that wait until more of the text shows what they are."""
        return len(self._held)

    def feed(self, text: str) -> list[Delta]:
        """Add text; return all deltas that are certain by now."""
        self._held += "" if self._done else text
        return self._read(False)

    def end(self) -> list[Delta]:
        """Return the remaining deltas at the end of the text."""
        return self._read(True)

    def message(self, text: str) -> dict[str, Any]:
        """Parse a whole answer into a chat message."""
        message: dict[str, Any] = {"role": "assistant", "content": None}
        for delta in (*self.feed(text), *self.end()):
            if delta.kind != "tool_calls":
                message[delta.kind] = (message.get(delta.kind) or "") + delta.text
            elif delta.id:
                function = {"name": delta.name, "arguments": ""}
                call = {"id": delta.id, "type": "function", "function": function}
                message.setdefault("tool_calls", []).append(call)
            else:
                message["tool_calls"][delta.index]["function"]["arguments"] += delta.text
        if message["content"] is None and "tool_calls" not in message:
            message["content"] = ""
        return message

    def _read(self, final: bool) -> list[Delta]:
        found: list[Delta] = []
        while (self._held or (final and self._calls)) and self._step(found, final):
            pass
        return found

    def _step(self, found: list[Delta], final: bool) -> bool:
        """Consume some of the held text; False if more is needed first."""
        if self._trims:  # drop line breaks after a marker
            self._held = self._held.lstrip("\n")
            self._trims = not self._held
            return True
        if self._reasoning:
            mark = self._until(found, "reasoning_content", (self._close,), final)
            if mark:
                self._held = self._held[len(mark) :]
                self._reasoning, self._trims = False, True
            return bool(mark)
        if self._calls:
            return self._call(self._calls, found, final)
        if not self._begun:
            start = self._held.lstrip()
            if self._open.startswith(start) and not final:
                return False
            self._begun = True
            if start.startswith(self._open):
                self._reasoning = self._trims = True
                self._held = start[len(self._open) :]
            return True
        opens = self._call_format.opens if self._call_format else ()
        mark = self._until(found, "content", (*opens, *self._dropped), final)
        if mark in self._dropped:
            self._held = self._held[len(mark or "") :]
        elif mark:
            self._begin_calls()
        return bool(mark)

    def _begin_calls(self) -> None:
        assert self._call_format is not None
        self._calls = self._call_format.parser(self._schemas)

    def _until(
        self, found: list[Delta], kind: str, marks: tuple[str, ...], final: bool
    ) -> str | None:
        """Emit the text before the first marker and return the marker, if there is one."""
        places = [(at, mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        keep = 0 if final else max((_overlap(self._held, mark) for mark in marks), default=0)
        if marks and kind == "content" and not final:  # whitespace before a marker is dropped
            sure = self._held[: len(self._held) - keep]
            keep += len(sure) - len(sure.rstrip())
        end, mark = min(places, default=(len(self._held) - keep, None))
        text, self._held = self._held[:end], self._held[end:]
        if mark and kind == "content":
            text = text.rstrip()
        if text:
            found.append(Delta(kind, text))
        return mark

    def _call(self, calls: ToolCallParser, found: list[Delta], final: bool) -> bool:
        """Parse tool calls up to their end; a text that turns out to be no call is content."""
        for part in calls.feed(self._held, final):
            self._tell(found, part)
        self._held, self._cut = calls.rest or "", calls.cut
        if calls.rest is None:
            return False
        if self._count and not self._parallel:
            self._done, self._held = True, ""
        self._calls, self._trims = None, True
        self._after_calls()
        return True

    def _after_calls(self) -> None:
        """Prepare for the text after calls."""

    def _tell(self, found: list[Delta], part: ToolCallPart) -> None:
        alone = not self._parallel and self._count > 0
        self._done = self._done or (alone and part.kind != "arguments")
        if self._done:
            return
        if part.kind == "text":
            found.append(Delta("content", part.text))
        elif part.kind == "arguments":
            found.append(Delta("tool_calls", part.text, self._count - 1))
        else:
            id = part.id or f"call_{os.urandom(12).hex()}"
            found.append(Delta("tool_calls", "", self._count, id, part.text))
            self._count += 1


def _overlap(text: str, mark: str) -> int:
    """Length of the longest prefix of a marker at the end of the text."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
