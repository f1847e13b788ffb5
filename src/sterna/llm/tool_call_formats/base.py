"""`ToolCallFormat`: how tool calls are written; `ToolCallParser`: reads them as they come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from sterna.engine.decoding.grammars import NO_FRAME, Frame, Messages, ToolCall
from sterna.llm.tool_call_formats.json_calls import Head
from sterna.llm.tool_call_formats.pieces import Unfinished, follows

__all__ = ["ToolCallFormat", "ToolCallParser", "ToolCallPart"]


class ToolCallPart(NamedTuple):
    """A piece of parsed calls.

    kind: "name" begins a call, "arguments" continues its JSON, "text" is not part of a call. id: of
    the call, if the model writes ids.
    """

    kind: str
    text: str
    id: str = ""


@dataclass(frozen=True)
class ToolCallFormat(ABC):
    """How calls are written, and the grammar of them.

    Attributes:
        trigger: the first text or special token of a call.
        begin, end: the text around the arguments of a call.
        frame: the text around calls.
        messages: how the answer is divided, if it consists of messages with headers.
    """

    trigger: str
    begin: str
    end: str
    frame: Frame = NO_FRAME
    messages: Messages | None = None

    @property
    def marks(self) -> str:
        """All markers whose special tokens must reach the parser."""
        messages = self.messages
        headers = [messages.separator, messages.reasoning, messages.content] if messages else []
        frame = (self.frame.opens, self.frame.separator, self.frame.closes)
        return "\n".join([self.trigger, self.begin, self.end, *frame, *headers])

    @property
    @abstractmethod
    def opens(self) -> tuple[str, ...]:
        """The texts with which calls may begin in an answer, those of models' slips included."""

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message with calls in the form that the chat template reads."""
        return message

    @abstractmethod
    def tool_call(self, name: str, schema: Mapping[str, Any], strict: bool) -> ToolCall:
        """Make the rule by which the engine constrains a call of a tool. strict: see `ToolCall`."""

    def tool_calls(self, name: str, schema: Mapping[str, Any], strict: bool) -> Iterator[ToolCall]:
        """Yield the rules of all ways to call a tool; arguments as for `tool_call`."""
        yield self.tool_call(name, schema, strict)

    @abstractmethod
    def head(
        self, text: str, at: int, names: Collection[str] | None, first: bool = True
    ) -> Head | None:
        """Match a call of an offered tool up to its arguments; None if there is none.

        names: the tools' names; None: any name is offered. first: whether no call came before.
        Unfinished if more text must come first.
        """

    def text_header(self, text: str) -> tuple[str, int] | None:
        """Match the header of a message without calls; returns the kind of its text, and its end.

        The kinds are those of `Delta`. Unfinished if more text must come first.
        """
        messages = self.messages
        if messages is None:
            return None
        unfinished = False
        for header in filter(None, (messages.content, messages.reasoning, *messages.other)):
            try:
                if follows((header,), text, 0):
                    kind = "reasoning_content" if header == messages.reasoning else "content"
                    return kind, len(header)
            except Unfinished:
                unfinished = True
        if unfinished:
            raise Unfinished
        return None

    @abstractmethod
    def parser(self, schemas: Mapping[str, Any] | None) -> ToolCallParser:
        """Make a parser for text that begins with one of `opens`.

        schemas: schemas of the arguments by name of the offered tools; None: any name is offered.
        """


class ToolCallParser(ABC):
    """A state machine that parses calls; the text begins with one of `opens`.

    Each step consumes some of the held text and returns False if it needs more.

    Attributes:
        rest: the text after the calls; None while more may come.
        cut: whether the answer ended within a call.
    """

    def __init__(self) -> None:
        self.rest: str | None = None
        self.cut: bool = False
        self._held = ""
        self._step: Callable[[list[ToolCallPart], bool], bool] = self._next

    def feed(self, text: str, final: bool) -> list[ToolCallPart]:
        """Add text; return all parts that are certain by now. final: no more text follows."""
        self._held += text
        parts: list[ToolCallPart] = []
        while self.rest is None and self._step(parts, final):
            pass
        if final and self.rest is None:
            self._leave("")
        return parts

    def _leave(self, rest: str) -> None:
        """End the calls before a text."""
        self._held, self.rest = "", rest

    @abstractmethod
    def _next(self, parts: list[ToolCallPart], final: bool) -> bool:
        """Find the next call, or the end of all."""
