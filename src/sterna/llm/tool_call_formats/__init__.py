"""How families of models write tool calls.

The output of the chat template decides. A few families have a file with their FORMAT. It is the
format of a template that writes its calls or messages, or whose prompt tells the model to write
these (KNOWN_BY). For all others the format is derived from what the template writes (`derive`). If
a template has no place for tools, they are described in the system prompt (`chat.tools`), in the
format of Hermes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module
from typing import Any, cast

from sterna.chat import ChatTemplate
from sterna.chat.calls import with_decoded_arguments
from sterna.chat.tools import has_calls, tools_in_messages
from sterna.engine.decoding.special_tokens import ID
from sterna.engine.decoding.spelled_values import SpelledValues
from sterna.errors import ModelFormatError, RequestError
from sterna.llm.tool_call_formats import hermes
from sterna.llm.tool_call_formats.base import ToolCallFormat
from sterna.llm.tool_call_formats.derive import derived_format
from sterna.llm.tool_call_formats.layout import LayoutFormat, spelled_arguments

__all__ = [
    "ToolCallFormat",
    "for_template",
    "format_of",
    "known_format",
    "other_formats",
    "own_format",
]

#: Modules of formats that are known: those that a template writes, and those that it only tells.
_WRITTEN = tuple(
    "harmony functionary muse solar gemma4 minimax_m3 hermes llama3 mistral qwen3_coder".split()
)
_TOLD = ("lfm2", "granite3")

_NAME, _ARGUMENTS = "probe", {"place": "here or there"}
_FUNCTION = {"name": _NAME, "arguments": _ARGUMENTS}
_QUESTION, _ANSWER = "PROBED QUESTION", "PROBED ANSWER"
_CALL: dict[str, Any] = {"id": "a1b2c3d4e", "type": "function", "function": _FUNCTION}
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
    """Return the format in which calls are asked of a model with this template."""
    own = own_format(template) if template is not None else None
    return own or hermes.FORMAT


def other_formats(template: ChatTemplate | None) -> tuple[ToolCallFormat, ...]:
    """Return more formats in which such a model may call.

    A template may write calls without a place for tools. These are then described in the system
    prompt, in the format of Hermes, but the model was trained with calls as the template has them.
    """
    written = written_format(template) if template is not None else None
    return (written,) if written and written != format_of(template) else ()


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
    """Return the known format in which a template writes messages or calls; None without any."""
    return _known_format(template) if template is not None else None


@lru_cache(maxsize=64)
def _known_format(template: ChatTemplate) -> ToolCallFormat | None:
    asked: list[dict[str, Any]] = [{"role": "user", "content": _QUESTION}]
    answered = [*asked, {"role": "assistant", "content": _ANSWER}]
    called = [*asked, {"role": "assistant", "content": "", "tool_calls": [_CALL]}]
    prompt, answer = _rendered(template, asked, True), _rendered(template, answered, False)
    calls = _rendered(template, called, False, tools=[_TOOL])
    for call_format in map(_known, _WRITTEN):
        if _has_messages(call_format, prompt, answer) or _writes(call_format, calls):
            return call_format
    return None


@lru_cache(maxsize=64)
def written_format(template: ChatTemplate) -> ToolCallFormat | None:
    """Return the format in which the template writes calls; None if it writes none."""
    return known_format(template) or derived_format(template)


@lru_cache(maxsize=64)
def own_format(template: ChatTemplate) -> ToolCallFormat | None:
    """Return the format of calls for which the template writes tools; None if it writes none."""
    written = written_format(template)
    if template.takes_tools or (written and written.messages):
        return written or _told_format(template)
    return None


def _told_format(template: ChatTemplate) -> ToolCallFormat | None:
    """Return the format that a template tells the model, but does not write itself."""
    text = _rendered(template, [{"role": "user", "content": _QUESTION}], True, tools=[_TOOL])
    for name in _TOLD:
        if all(mark in text for mark in _module(name).KNOWN_BY):
            return _known(name)
    return None


def _rendered(
    template: ChatTemplate, messages: list[dict[str, Any]], prompt: bool, **options: Any
) -> str:
    try:
        return template.render(messages, prompt, **options)
    except (RequestError, ModelFormatError):
        return ""


def _module(name: str) -> Any:
    return import_module(f"{__name__}.{name}")


def _known(name: str) -> LayoutFormat:
    return cast("LayoutFormat", _module(name).FORMAT)


def _has_messages(call_format: LayoutFormat, prompt: str, answer: str) -> bool:
    """Whether a prompt and an answer without calls consist of a format's messages."""
    messages = call_format.messages
    if messages is None:
        return False
    opened = bool(messages.starts) and prompt.endswith(f"{_QUESTION}{messages.separator}")
    return opened or f"{messages.starts or messages.ends}{messages.content}{_ANSWER}" in answer


def _writes(call_format: LayoutFormat, text: str) -> bool:
    """Whether a rendered text has the probe as a call in this format.

    Values that are spelled in a way of the format's own are not compared.
    """
    messages, text = call_format.messages, text.replace(_CALL["id"], ID)
    start = (messages.starts or messages.ends) if messages else ""
    for rule in call_format.tool_calls(_NAME, {}, False):
        before, end = f"{start}{call_format.frame.opens}{rule.begin}", rule.end.rstrip()
        if isinstance(rule.tagged, SpelledValues):
            if before in text and end in text.partition(before)[2]:
                return True
        elif f"{before}{spelled_arguments(rule.tagged, _ARGUMENTS)}{end}" in text:
            return True
    return False
