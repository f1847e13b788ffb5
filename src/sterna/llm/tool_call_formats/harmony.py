"""Harmony of gpt-oss: channels for analysis, commentary and the final answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.grammars import Messages, ToolCall
from sterna.llm.tool_call_formats.json_calls import Head
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat
from sterna.llm.tool_call_formats.pieces import Unfinished, follows, offered, skipped

_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"
#: Ends of a header: its own mark or, if the model forgets that one, the next message's begin.
_ENDS = re.compile(r"<\|message\|>|(?=<\|(?:start|end|call|return)\|>)")
_NAME = re.compile(r"<\|channel\|>\s*([a-z]*)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
#: Recipients of texts.
_READERS = ("user", "assistant", "all")


@dataclass(frozen=True)
class HarmonyFormat(LayoutFormat):
    """Headers whose parts come in any order: a channel, a recipient, the type of the content.

    The recipient of a call is in the channel's header, or before it as in the template.
    """

    def tool_calls(self, name: str, schema: Mapping[str, Any], strict: bool) -> Iterator[ToolCall]:
        """Yield the rules of both places of the recipient."""
        yield from super().tool_calls(name, schema, strict)
        form = f" to=functions.{name}{_CHANNEL}commentary json{_MESSAGE}"
        yield ToolCall(form, schema, self.end, strict)

    def head(
        self, text: str, at: int, names: Collection[str] | None, first: bool = True
    ) -> Head | None:
        """Match as `ToolCallFormat.head`."""
        header = _header(text, at)
        recipient = _RECIPIENT.search(header) if header else None
        name = offered(recipient[1], names) if recipient else None
        if header is None or name is None or name in _READERS or not header.endswith(_MESSAGE):
            return None
        return Head(name, at + len(header))

    def text_header(self, text: str) -> tuple[str, int] | None:
        """Match as `ToolCallFormat.text_header`."""
        header = _header(text, 0)
        channel = _NAME.search(header) if header else None
        recipient = _RECIPIENT.search(header) if header else None
        if header is None or channel is None or (recipient and recipient[1] not in _READERS):
            return None
        if not header.endswith(_MESSAGE):  # a text, often a thought, in the place of the header
            kind = "content" if channel[1] == "final" else "reasoning_content"
            return kind, channel.end()
        kind = "reasoning_content" if channel[1] == "analysis" else "content"
        return kind, len(header)


def _header(text: str, at: int) -> str | None:
    """Return the header of a message, with the white space before it; None if there is none.

    It ends with _MESSAGE unless the model forgot that.
    """
    begin = skipped(text, at)
    if not follows((_CHANNEL, "to="), text, begin):
        return None
    end = _ENDS.search(text, begin)
    if end is None:
        raise Unfinished
    return text[at : end.end()]


FORMAT = HarmonyFormat(
    trigger=f"{_CHANNEL}commentary to=functions.",
    begin=f"{_CHANNEL}commentary to=functions.{NAME} <|constrain|>json{_MESSAGE}",
    end="<|call|>",
    messages=Messages(
        "<|end|>",
        "<|start|>assistant",
        f"{_CHANNEL}analysis{_MESSAGE}",
        f"{_CHANNEL}final{_MESSAGE}",
        (f"{_CHANNEL}commentary{_MESSAGE}",),
    ),
)
