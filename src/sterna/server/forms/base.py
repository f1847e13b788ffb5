"""`Form`: where a call begins and ends in an answer, and what stands between."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sterna.engine.constraints import ToolCall

__all__ = ["Call", "Form"]


@dataclass(frozen=True)
class Call:
    """A call of a tool: its name, and its arguments as JSON."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Form:
    """Calls as JSON objects of a name and arguments.

    marks: texts of the template by which it is known. trigger: what the model writes first, text
    or a special token. begin, end: around the arguments of a call, {} for the name as JSON. opens:
    the texts with which calls begin in an answer, where special tokens are left out; closes: the
    text that ends them, none: the end of the answer. key: of the arguments. within: whether the
    trigger is a part of the object. rank: forms of a lower one are looked for first.
    """

    marks: tuple[str, ...]
    trigger: str
    begin: str
    end: str
    opens: tuple[str, ...]
    closes: str = ""
    key: str = "arguments"
    within: bool = False
    rank: int = 1

    def call(self, name: str, schema: Mapping[str, Any]) -> ToolCall | None:
        """What the engine lets an answer write of a tool's call; None where it cannot."""
        return ToolCall(self.begin.replace("{}", json.dumps(name)), schema, self.end)

    def parse(self, text: str) -> list[Call] | None:
        """The calls of a text from one of `opens` to before `closes`; None if they are none."""
        values, decoder = [], json.JSONDecoder()
        text = (text if self.within else text.removeprefix(self.trigger)).strip()
        try:
            while text:
                value, end = decoder.raw_decode(text)
                values += value if isinstance(value, list) else [value]
                text = text[end:].lstrip(" \n;,")
        except (ValueError, RecursionError):
            return None
        calls = [self._call(value) for value in values]
        return [call for call in calls if call] if calls and all(calls) else None

    def _call(self, value: Any) -> Call | None:
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get(self.key, {})
        text = (
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        )
        return Call(value["name"], text)
