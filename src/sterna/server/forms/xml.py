"""Qwen3-Coder, Qwen 3.5 and 3.6: <function=name> with a <parameter=name> for each argument."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sterna.engine.constraints import ToolCall
from sterna.server.forms.base import Call, Form

_FUNCTION = re.compile(r"<function=([^>\n]+)>\n?(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class _Xml(Form):
    """Arguments are texts, or JSON where they are not; what the engine enforces is their JSON."""

    def call(self, name: str, schema: Mapping[str, Any]) -> ToolCall | None:
        """None: no grammar of arguments in this form."""
        return None

    def parse(self, text: str) -> list[Call] | None:
        """As `Form.parse`."""
        found = _FUNCTION.findall(text)
        calls = [Call(name, _arguments(inside)) for name, inside in found]
        return calls or None


def _arguments(inside: str) -> str:
    pairs = {name: _value(text) for name, text in _PARAMETER.findall(inside)}
    return json.dumps(pairs, ensure_ascii=False)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


FORM = _Xml(
    marks=("<tool_call>", "<function="),
    trigger="<tool_call>",
    begin="",
    end="",
    opens=("<tool_call>",),
    closes="</tool_call>",
    rank=0,
)
