"""How families of models write tool calls.

The chat template decides. A few families have a file with their FORMAT: those whose template's text
shows them (KNOWN_BY), and those whose parser reads the call that the template writes. For all
others the format is derived from what the template writes (`derive`). If a template writes no
calls, the tools are described in the system prompt (`chat.tools`), in the format of Hermes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from sterna.chat import ChatTemplate
from sterna.chat.calls import with_decoded_arguments
from sterna.chat.tools import has_calls, tools_in_messages
from sterna.errors import ModelFormatError, RequestError
from sterna.llm.tool_call_formats import hermes
from sterna.llm.tool_call_formats.base import ToolCallFormat
from sterna.llm.tool_call_formats.derive import derived_format

__all__ = ["ToolCallFormat", "for_template", "format_of", "known_format", "own_format"]

#: Modules of formats that the template's text tells, those that a rendered call tells, and those
#: whose template writes no calls.
_KNOWN = ("harmony", "functionary", "muse", "solar", "gemma4", "minimax_m3")
_READ = ("hermes", "llama3", "mistral", "qwen3_coder")
_UNWRITTEN = ("lfm2", "granite3")

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


def format_of(template: ChatTemplate | None) -> ToolCallFormat:
    """Return the format of calls for a model with this template."""
    own = own_format(template) if template is not None else None
    return own or hermes.FORMAT


def for_template(
    template: ChatTemplate | None,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
    """Change messages and tools such that the template can show them.

    Moves tools and calls into the text of messages if the template has no known format for them.
    """
    if template is None or not (tools or has_calls(messages)):
        return messages, tools
    messages, own = with_decoded_arguments(messages), own_format(template)
    if tools and not any("function" in tool for tool in tools):
        if template.takes_bare_tools:
            return messages, tools
        tools = [{"type": "function", "function": tool} for tool in tools]
    if own and template.takes_tools:
        return [own.message(message) for message in messages], tools
    return tools_in_messages(messages, tools, template.takes_system), ()


def known_format(template: ChatTemplate | None) -> ToolCallFormat | None:
    """Return the format that a template's text shows, without rendering; None if it shows none."""
    for module in map(_module, _KNOWN):
        if template and all(map(template.mentions, module.KNOWN_BY)):
            return cast("ToolCallFormat", module.FORMAT)
    return None


@lru_cache(maxsize=64)
def own_format(template: ChatTemplate) -> ToolCallFormat | None:
    """Return the format in which the template writes calls, if it is known."""
    known = known_format(template)
    if known and (known.messages or template.takes_tools):
        return known
    if not template.takes_tools:
        return None
    said = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": ""}]
    said[1]["tool_calls"] = [_CALL]  # type: ignore[assignment]
    try:
        text = template.render(said, add_generation_prompt=False, tools=[_TOOL])
    except (RequestError, ModelFormatError):
        text = ""
    read = (_module(name).FORMAT for name in _READ)
    found = next((call_format for call_format in read if _reads(call_format, text)), None)
    if found := found or derived_format(template):
        return cast("ToolCallFormat", found)
    for module in map(_module, _UNWRITTEN):
        if all(map(template.mentions, module.KNOWN_BY)):
            return cast("ToolCallFormat", module.FORMAT)
    return None


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


def _reads(call_format: ToolCallFormat, text: str) -> bool:
    """Whether the last call in a rendered text is the probe, in this format."""
    rule = call_format.tool_call(_NAME, {}, False)
    whole = f"{rule.begin}{json.dumps(_ARGUMENTS)}{rule.end}"
    if call_format.trigger not in text or not (rule.tagged or whole in text):
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
