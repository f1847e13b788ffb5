"""Gemma 4: call:name{key:value,…}, with texts between special tokens."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.llm.tool_call_formats.arguments_readers import loads
from sterna.llm.tool_call_formats.layout import NAME, LayoutFormat

_QUOTE, _END = '<|"|>', "}<tool_call|>"
_WORDS = {"true": True, "false": False, "null": None, "None": None}


class GemmaReader:
    """Reads arguments up to the end of the call, all at once."""

    def __init__(self, after: str, schema: Mapping[str, Any]) -> None:
        self._searched = 0

    def read(self, pending: str, final: bool) -> tuple[str, int, bool]:
        """Return (JSON, characters consumed, whether the call ends); nothing before the end."""
        at = pending.find(_END, self._searched)
        while at >= 0:
            if pending.count(_QUOTE, 0, at) % 2 == 0:
                return _object(pending[:at]), at, True
            at = pending.find(_END, at + 1)
        self._searched = max(0, len(pending) - len(_END))
        return "", 0, False


def _object(text: str) -> str:
    """Return members as a JSON object; {} if they are malformed."""
    try:
        value, _ = _members(text + "}", 0)
    except (ValueError, IndexError, RecursionError):
        value = {}
    return json.dumps(value, ensure_ascii=False)


def _members(text: str, at: int) -> tuple[dict[str, Any], int]:
    members: dict[str, Any] = {}
    while text[at] != "}":
        colon = text.index(":", at)
        members[text[at:colon].strip(' ",')], at = _value(text, colon + 1)
        at += text[at] == ","
    return members, at + 1


def _value(text: str, at: int) -> tuple[Any, int]:
    if text.startswith(_QUOTE, at):
        end = text.index(_QUOTE, at + len(_QUOTE))
        return text[at + len(_QUOTE) : end], end + len(_QUOTE)
    if text[at] == "{":
        return _members(text, at + 1)
    if text[at] == "[":
        items, at = [], at + 1
        while text[at] != "]":
            item, at = _value(text, at)
            items.append(item)
            at += text[at] == ","
        return items, at + 1
    end = min(i for c in ",}]" if (i := text.find(c, at)) >= 0)
    word = text[at:end].strip()
    return (_WORDS[word] if word in _WORDS else loads(word)), end


FORMAT = LayoutFormat(
    trigger="<|tool_call>",
    begin=f"<|tool_call>call:{NAME}{{",
    end=_END,
    form=SpelledValues(
        "{}:",
        key="{}:",
        comma=",",
        text=(_QUOTE, _QUOTE),
        words=("true", "false", "null"),
        ordered=True,
    ),
    reader=GemmaReader,
)
