"""Harmony of gpt-oss: channels for analysis, commentary and the final answer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sterna.engine.decoding.grammars import Messages, ToolCall
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

_CHANNEL, _MESSAGE = "<|channel|>", "<|message|>"


@dataclass(frozen=True)
class HarmonyFormat(LayoutFormat):
    """The recipient of a call is in the channel's header, or before it as in the template."""

    def tool_calls(self, name: str, schema: Mapping[str, Any], strict: bool) -> Iterator[ToolCall]:
        """Yield the rules of both places of the recipient."""
        yield from super().tool_calls(name, schema, strict)
        form = f" to=functions.{name}{_CHANNEL}commentary json{_MESSAGE}"
        yield ToolCall(form, schema, self.end, strict)

    @cached_property
    def head(self) -> re.Pattern[str]:
        """Matches a call's header in any order."""
        channel = r"(?:<\|channel\|>(?:commentary|analysis)\s*)?"
        kind = r"\s*(?:<\|constrain\|>)?\s*(?:json|code)?\s*<\|message\|>"
        return re.compile(rf"{channel}to=functions\.(?P<name>[^\s<]+)\s*{channel}{kind}")


KNOWN_BY = ("<|channel|>", "to=functions.")
FORMAT = HarmonyFormat(
    trigger=f"{_CHANNEL}commentary to=functions.",
    begin=f"{_CHANNEL}commentary to=functions.{NAME} <|constrain|>json{_MESSAGE}",
    end="<|call|>",
    opens=(
        f"{_CHANNEL}commentary to=functions.", f"{_CHANNEL}analysis to=functions.",
        "to=functions.",
    ),
    messages=Messages(
        "<|end|>", "<|start|>assistant", f"{_CHANNEL}analysis{_MESSAGE}",
        f"{_CHANNEL}final{_MESSAGE}", (f"{_CHANNEL}commentary{_MESSAGE}",),
    ),
)  # fmt: skip
