"""Writes tools into the system prompt, for templates that have no place for them.

The form is that of Hermes. Qwen 2.5 and 3, SmolLM3 and many others are trained with it as well.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["has_calls", "tools_in_messages", "with_all_fields"]


def with_all_fields(tools: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    """Give tools every field of a function that templates read, also those a client left out."""
    bare = {"description": "", "parameters": {"type": "object", "properties": {}}}
    return tools and [
        {**tool, "function": {**bare, **tool["function"]}}
        if isinstance(tool.get("function"), dict)
        else tool
        for tool in tools
    ]


def has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether messages contain tool calls or their results."""
    return any(m.get("tool_calls") or m.get("role") in ("tool", "function") for m in messages)


def tools_in_messages(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None, system: bool
) -> list[dict[str, Any]]:
    """Write tools, calls and results as text into messages of system, user and assistant.

    system: whether the template takes a system prompt; if not, the tools open the first message.
    """
    rewritten: list[dict[str, Any]] = []
    for message in messages:
        role, text = message.get("role"), _text(message.get("content"))
        if role in ("tool", "function"):
            _join(rewritten, "user", f"<tool_response>\n{text}\n</tool_response>")
        elif message.get("tool_calls"):
            calls = [text] if text else []
            calls += [_call(call.get("function", call)) for call in message["tool_calls"]]
            others = {k: v for k, v in message.items() if k != "tool_calls"}
            rewritten.append({**others, "content": "\n".join(calls)})
        elif role == "user" and rewritten and rewritten[-1].get("role") == "user":
            _join(rewritten, "user", text)
        else:
            rewritten.append(dict(message))
    if tools:
        _tell(rewritten, _instructions(tools), system)
    return rewritten


def _tell(messages: list[dict[str, Any]], text: str, system: bool) -> None:
    first = messages[0] if messages else {}
    if first.get("role") == "system":
        text = f"{_text(first.get('content'))}\n\n{text}".lstrip()
        del messages[0]
    if system:
        messages.insert(0, {"role": "system", "content": text})
    elif messages and messages[0].get("role") == "user":
        own = _text(messages[0].get("content"))
        messages[0] = {**messages[0], "content": f"{text}\n\n{own}"}
    else:
        messages.insert(0, {"role": "user", "content": text})


def _join(messages: list[dict[str, Any]], role: str, text: str) -> None:
    """Append to the last message if it has this role: many templates need alternating roles."""
    if messages and messages[-1].get("role") == role:
        before = _text(messages[-1].get("content"))
        messages[-1] = {**messages[-1], "content": f"{before}\n{text}"}
    else:
        messages.append({"role": role, "content": text})


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, dict))
        return "\n".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


def _call(function: Mapping[str, Any]) -> str:
    arguments = function.get("arguments")
    if not isinstance(arguments, str):  # text that was cut off stays as it is
        arguments = _json(arguments or {})
    return (
        f'<tool_call>\n{{"name": {_json(function.get("name"))}, "arguments": {arguments}}}\n'
        "</tool_call>"
    )


def _instructions(tools: Sequence[Mapping[str, Any]]) -> str:
    listed = "\n".join(_json(tool) for tool in tools)
    return (
        "# Tools\n\nYou can call these functions, whose signatures are JSON within <tools></tools>:"
        f"\n<tools>\n{listed}\n</tools>\n\n"
        "To call one, write its name and its arguments as a JSON object within "
        "<tool_call></tool_call>, once for each call:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
