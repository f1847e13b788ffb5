"""`OutputParser`: splits an answer's text into reasoning, content and tool calls, as it comes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    arguments, by name; only these are tools, and None is any. marks: around the reasoning. others:
    more formats in which calls may come.

    Some models call a tool and leave their reasoning open. Such a call ends the reasoning. Others
    draft a call and go on: if the reasoning is closed, and an answer follows, the call is a part of
    the reasoning. Which of both it is shows at the end, so its deltas are held back.
    """

    def __init__(
        self,
        call_format: ToolCallFormat | None = None,
        parallel: bool = True,
        opened: bool = False,
        schemas: Mapping[str, Any] | None = None,
        marks: ReasoningMarks | None = None,
        others: Sequence[ToolCallFormat] = (),
    ) -> None:
        marks = marks or ReasoningMarks()
        self._open, self._close = marks.opens.strip(), marks.closes.strip()
        self._dropped = marks.dropped
        self._schemas, self._parallel = schemas, parallel
        formats = [call_format, *others] if call_format else [*others]
        self._formats = {mark: one for one in reversed(formats) for mark in one.opens}
        self._reasoning = opened
        self._begun = self._trims = self._reasoning
        self._calls: ToolCallParser | None = None
        self._held = ""
        self._space = ""  # white space before a mark, which is text if no call follows
        self._gap = False  # behind calls, whose white space is text if text follows
        self._has_content = False
        self._draft: _Draft | None = None  # of a call within reasoning
        self._done = False  # drop the text after the only tool call allowed
        self._count = self._before = 0  # calls, and those before the present group
        self._cut = False

    @property
    def has_tool_calls(self) -> bool:
        """Whether the answer has tool calls, all of them complete."""
        return self._count > 0 and not self._cut

    def finish_reason(self, reason: str) -> str:
        """Return the finish reason of the answer, whose text ended for a reason.

        Calls are the reason if they are all that there is. Where the text was cut, more may have
        been to come.
        """
        whole = reason == "stop" or self._done  # what follows the only call allowed is dropped
        return "tool_calls" if self.has_tool_calls and whole else reason

    @property
    def unread(self) -> int:
        """The number of characters that need more text before they can be parsed."""
        return len(self._draft.text if self._draft else self._held)

    def feed(self, text: str) -> list[Delta]:
        """Add text; return all deltas that are certain by now."""
        self._held += "" if self._done else text
        if self._draft:
            self._draft.text += text
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
        deltas: list[Delta] = []
        while (self._held or (final and self._calls)) and self._step(deltas, final):
            pass
        if final and self._draft:
            deltas += self._settled(self._draft, called=True)
        return deltas

    def _step(self, deltas: list[Delta], final: bool) -> bool:
        """Consume some of the held text; False if more is needed first."""
        draft = self._draft
        if draft and draft.closed:
            return self._after_draft(draft, deltas)
        if self._trims:  # drop line breaks after a marker
            self._held = self._held.lstrip("\n")
            self._trims = not self._held
            return True
        if self._calls:
            return self._call(self._calls, deltas, final)
        if self._reasoning:
            return self._think(deltas, final)
        if not self._begun:
            return self._begin(final)
        return self._content(draft.deltas if draft else deltas, final)

    def _begin(self, final: bool) -> bool:
        """Read the beginning of an answer, which may open reasoning."""
        start = self._held.lstrip()
        if self._open.startswith(start) and not final:
            return False
        self._begun = True
        if start.startswith(self._open):
            self._reasoning = self._trims = True
            self._held = start[len(self._open) :]
        return True

    def _think(self, deltas: list[Delta], final: bool) -> bool:
        """Read reasoning up to its end, or to the marker that opens a call."""
        mark = self._until(deltas, "reasoning_content", (self._close, *self._formats), final)
        if mark == self._close:
            self._held = self._held[len(mark) :]
            self._reasoning, self._trims = False, True
        elif mark:
            self._draft = _Draft(self._held)
            self._begin_calls(self._formats[mark])
        return bool(mark)

    def _content(self, deltas: list[Delta], final: bool) -> bool:
        """Read content up to the marker that opens a call, or closes reasoning that has a draft."""
        if self._gap:
            text = self._held.lstrip()
            if not text and not final:
                return False
            self._held, self._gap = self._held if text and self._has_content else text, False
            return True
        closes = (self._close,) if self._draft else ()
        mark = self._until(deltas, "content", (*self._formats, *self._dropped, *closes), final)
        if mark and self._draft and mark == self._close:
            self._draft.closed = len(self._draft.text) - len(self._held)
        if mark in self._formats:
            self._begin_calls(self._formats[mark])
        elif mark:
            self._held = self._held[len(mark) :]
        return bool(mark)

    def _begin_calls(self, call_format: ToolCallFormat) -> None:
        self._calls, self._before = call_format.parser(self._schemas), self._count

    def _until(
        self, deltas: list[Delta], kind: str, marks: tuple[str, ...], final: bool
    ) -> str | None:
        """Emit the text before the first marker and return the marker, if there is one."""
        places = [(at, -len(mark), mark) for mark in marks if (at := self._held.find(mark)) >= 0]
        keep = 0 if final else max((_overlap(self._held, mark) for mark in marks), default=0)
        if marks and kind == "content" and not final:  # whitespace before a marker is dropped
            sure = self._held[: len(self._held) - keep]
            keep += len(sure) - len(sure.rstrip())
        end, _, mark = min(places, default=(len(self._held) - keep, 0, None))
        text, self._held = self._held[:end], self._held[end:]
        if mark and kind == "content":
            whole, text = text, text.rstrip()
            self._space = whole[len(text) :]
        if text:
            self._say(deltas, kind, text)
        return mark

    def _say(self, deltas: list[Delta], kind: str, text: str) -> None:
        deltas.append(Delta(kind, text))
        self._has_content = self._has_content or kind == "content"

    def _call(self, calls: ToolCallParser, deltas: list[Delta], final: bool) -> bool:
        """Parse tool calls up to their end; a text that turns out to be no call is text."""
        draft = self._draft
        for part in calls.feed(self._held, final):
            self._tell(deltas, part)
        self._held, self._cut = calls.rest or "", calls.cut
        if calls.rest is None:
            return False
        self._calls, self._space = None, ""
        if self._count > self._before:
            if not self._parallel and not self._draft:
                self._done, self._held = True, ""
            self._after_calls()
        elif draft and not draft.called:
            self._draft = None
        return True

    def _after_calls(self) -> None:
        """Prepare for the text after calls."""
        self._gap = True

    def _tell(self, deltas: list[Delta], part: ToolCallPart) -> None:
        only_one = not self._parallel and self._count > 0 and not self._draft
        self._done = self._done or (only_one and part.kind != "arguments")
        if self._done:
            return
        if part.kind == "name" and self._draft:
            self._draft.called, self._reasoning = True, False
        if self._draft and self._draft.called:
            deltas = self._draft.deltas
        if part.kind == "text":
            kind = "reasoning_content" if self._reasoning else "content"
            self._say(deltas, kind, self._space + part.text)
            self._space = ""
        elif part.kind == "arguments":
            deltas.append(Delta("tool_calls", part.text, self._count - 1))
        else:
            id = part.id or f"call_{os.urandom(12).hex()}"
            deltas.append(Delta("tool_calls", "", self._count, id, part.text))
            self._count += 1

    def _after_draft(self, draft: _Draft, deltas: list[Delta]) -> bool:
        """Read on behind reasoning that has a draft of a call, and was closed."""
        if not self._held.strip():
            return False
        deltas += self._settled(draft, called=False)
        self._trims = True
        return True

    def _settled(self, draft: _Draft, called: bool) -> list[Delta]:
        """Return the deltas of a draft, depending on whether it was a call after all."""
        self._draft = None
        if not called:
            self._count, self._cut, self._has_content, self._gap = 0, False, False, False
            return [Delta("reasoning_content", draft.text[: draft.closed])]
        if self._parallel:
            return draft.deltas
        self._count, self._done = min(1, self._count), True
        return [delta for delta in draft.deltas if not (delta.index or delta.kind == "content")]


@dataclass
class _Draft:
    """A call within reasoning.

    text: the text from the call on. deltas: deltas of the call and of the text after it. called:
    whether it is a call. closed: where the reasoning was closed; 0: not yet.
    """

    text: str
    deltas: list[Delta] = field(default_factory=list)
    called: bool = False
    closed: int = 0


def _overlap(text: str, mark: str) -> int:
    """Length of the longest prefix of a marker at the end of the text."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)
