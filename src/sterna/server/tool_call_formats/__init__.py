"""How families of models write tool calls, one family per file.

The chat template decides: a model has the FORMAT whose parser reads the call that its template
writes. If no format does, the tools are described in the system prompt (`chat.tools`), in the
format of Hermes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from sterna.chat import ChatTemplate
from sterna.chat.tools import has_calls, tools_in_messages
from sterna.errors import ModelFormatError, RequestError
from sterna.server.tool_call_formats import hermes
from sterna.server.tool_call_formats.base import ToolCallFormat

__all__ = ["ToolCallFormat", "form_of", "forms", "shown"]

_NAME, _ARGUMENTS = "probe", {"place": "here or there"}
_FUNCTION = {"name": _NAME, "arguments": _ARGUMENTS}
_CALL = {"id": "a1b2c3d4e", "type": "function", "function": _FUNCTION}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Tries a call.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Where."}},
            "required": ["place"],
        },
    },
}


def formats() -> list[ToolCallFormat]:
    """List the formats of all modules."""
    names = [module.name for module in iter_modules(__path__) if module.name != "base"]
    return [import_module(f"{__name__}.{name}").FORMAT for name in names]


def format_of(template: ChatTemplate | None) -> ToolCallFormat:
    """Return the format of calls for a model with this template."""
    own = _own_format(template) if template is not None else None
    return own or hermes.FORMAT


def for_template(
    template: ChatTemplate | None,
    messages: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]],
) -> tuple[list[dict[str, Any]], Sequence[dict[str, Any]]]:
    """Change messages and tools such that the template can show them.

    Moves tools and calls into the text of messages if the template has no known format for them.
    """
    if template is None or not (tools or has_calls(messages)) or _own_format(template):
        return messages, tools
    return tools_in_messages(messages, tools, template.takes_system), ()


@lru_cache(maxsize=64)
def _own_format(template: ChatTemplate) -> ToolCallFormat | None:
    """Return the format in which the template writes calls, if it is known."""
    if not template.takes_tools:
        return None
    said = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": ""}]
    said[1]["tool_calls"] = [_CALL]  # type: ignore[assignment]
    try:
        text = template.render(said, add_generation_prompt=False, tools=[_TOOL])
    except (RequestError, ModelFormatError):
        return None
    return next((call_format for call_format in formats() if _reads(call_format, text)), None)


def _reads(call_format: ToolCallFormat, text: str) -> bool:
    """Whether the last call in a rendered text is the probe, in this format."""
    if call_format.trigger not in text:
        return False
    for opens in call_format.opens:
        at = text.rfind(opens)
        if at < 0:
            continue
        parts = call_format.parser({}).feed(text[at:], True)
        arguments = "".join(part.text for part in parts if part.kind == "arguments")
        named = [part.text for part in parts if part.kind == "name"] == [_NAME]
        if named and _same(arguments):
            return True
    return False


def _same(arguments: str) -> bool:
    try:
        return bool(json.loads(arguments) == _ARGUMENTS)
    except ValueError:
        return False
