"""Items of responses as the messages of a chat."""

from __future__ import annotations

from typing import Any

from sterna.errors import shown
from sterna.server.builtin_tools import Warn, skip_builtin_part
from sterna.server.chat_messages import check_message, content_of_parts
from sterna.server.custom_tools import arguments_of
from sterna.server.errors import field_error, invalid
from sterna.server.response_tools import name_in_namespace

__all__ = ["messages_of"]


def messages_of(items: list[dict[str, Any]], warn: Warn) -> list[dict[str, Any]]:
    """Convert items to chat messages. ApiError 400."""
    messages: list[dict[str, Any]] = []
    reasoning: list[str] = []  # before the next message or call, which has it
    for i, item in enumerate(items):
        where, kind = f"input[{i}]", item.get("type", "message")
        if kind == "message":
            check_message(item, where)
            content = item.get("content")
            if isinstance(content, list):
                content = content_of_parts(content, f"{where}.content")
            messages.append({"role": item.get("role"), "content": content, **_reasoning(reasoning)})
        elif kind in ("function_call", "custom_tool_call"):
            call = _call_of(item, where)
            if messages and "tool_calls" in messages[-1]:
                messages[-1]["tool_calls"].append(call)
            else:
                said = {"role": "assistant", "content": "", "tool_calls": [call]}
                messages.append({**said, **_reasoning(reasoning)})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            output = item.get("output")
            if isinstance(output, list):
                output = content_of_parts(output, f"{where}.output")
            elif not isinstance(output, str):
                raise invalid(f"{where}.output", "must be a text or parts", output)
            messages.append(
                {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
            )
        elif kind == "reasoning":
            content = item.get("content")
            parts = content if isinstance(content, list) else ()
            texts = (part.get("text") for part in parts if isinstance(part, dict))
            reasoning += [text for text in texts if isinstance(text, str)]
        elif not skip_builtin_part(kind, where, warn):
            raise field_error(
                f"{where}.type",
                "must be message, function_call, function_call_output or "
                f"reasoning, but got {shown(kind)}",
            )
    return messages


def _call_of(item: dict[str, Any], where: str) -> dict[str, Any]:
    """Return the call of a tool that an item has, in chat's form. ApiError 400."""
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str):
        raise invalid(f"{where}.name", "must be the name of a tool", name)
    if item["type"] == "custom_tool_call":
        if not isinstance(item.get("input"), str):
            raise invalid(f"{where}.input", "must be a text", item.get("input"))
        arguments = arguments_of(item["input"])
    function = {"name": name_in_namespace(item.get("namespace"), name), "arguments": arguments}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _reasoning(reasoning: list[str]) -> dict[str, Any]:
    """Take the reasoning before a message, as its field; the template keeps or drops it."""
    text = "\n".join(reasoning)
    reasoning.clear()
    return {"reasoning_content": text} if text else {}
