"""Qwen3-Coder, Qwen 3.5 and 3.6: <function=name> tags with <parameter=name> tags."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sterna.engine.decoding.grammars import ToolCall
from sterna.engine.decoding.tagged_arguments import TaggedArguments
from sterna.llm.tool_call_formats.arguments_readers import read_json
from sterna.llm.tool_call_formats.base import ToolCallFormat, ToolCallParser, ToolCallPart
from sterna.llm.tool_call_formats.layout import with_json_values

_FUNCTION = re.compile(r"<function=([^>\n]+)>")
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_END = "</function>"


@dataclass(frozen=True)
class XmlFormat(ToolCallFormat):
    """Arguments are raw text if their schema says string, else JSON."""

    def tool_call(self, name: str, schema: Mapping[str, Any], strict: bool) -> ToolCall:
        tagged = TaggedArguments("<parameter={}>\n", "\n</parameter>\n")
        return ToolCall(self.begin.replace("{}", name), schema, self.end, strict, tagged)

    def message(self, message: dict[str, Any]) -> dict[str, Any]:
        return with_json_values(message)

    def parser(self, schemas: Mapping[str, Any]) -> ToolCallParser:
        return XmlToolCallParser(self, schemas)


class XmlToolCallParser(ToolCallParser):
    """Yields one argument at a time, since its JSON depends on the complete text."""

    _mark = "<function="

    def __init__(self, call_format: ToolCallFormat, schemas: Mapping[str, Any]) -> None:
        super().__init__(call_format)
        self._schemas = schemas
        self._schema: Mapping[str, Any] = {}
        self._arguments = 0  # of this call so far

    def _begin(self, found: list[ToolCallPart], final: bool) -> bool:
        head = _FUNCTION.match(self._held)
        if head is None:
            if "\n" not in self._held and ">" not in self._held:
                return False
            self._step = self._junk
            return True
        self._schema = self._schemas.get(head[1]) or {}
        found += [ToolCallPart("name", head[1]), ToolCallPart("arguments", "{")]
        self._held, self._unsure, self._arguments = self._held[head.end() :], "", 0
        self._count += 1
        self._step = self._parameters
        return True

    def _parameters(self, found: list[ToolCallPart], final: bool) -> bool:
        self._held = self._held.lstrip()
        one = _PARAMETER.match(self._held)
        if one:
            key = json.dumps(one[1], ensure_ascii=False)
            value = read_json(one[2], self._texts(one[1]))
            comma = ", " if self._arguments else ""
            found.append(ToolCallPart("arguments", f"{comma}{key}: {value}"))
            self._held, self._arguments = self._held[one.end() :], self._arguments + 1
            return True
        ended = self._held.startswith(_END)
        if not ended and not self._held.startswith(self.call_format.closes):
            self.cut = final
            return False
        found.append(ToolCallPart("arguments", "}"))
        self._held = self._held[len(_END) :] if ended else self._held
        self._step = self._between
        return True

    def _texts(self, name: str) -> bool:
        properties = self._schema.get("properties")
        given = properties.get(name) if isinstance(properties, dict) else None
        return isinstance(given, dict) and given.get("type") == "string"


FORMAT = XmlFormat(
    trigger="<tool_call>",
    begin="<tool_call>\n<function={}>\n",
    end="</function>\n</tool_call>",
    opens=("<tool_call>",),
    closes="</tool_call>",
)
