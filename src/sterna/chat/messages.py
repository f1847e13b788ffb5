"""Checks messages, tools and variables, and puts them into the form that templates expect."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sterna.chat.limits import MAX_CHARS
from sterna.errors import RequestError, shown

__all__ = [
    "MARK",
    "check_messages",
    "json_copy",
    "json_objects",
    "mark_end",
    "template_message",
    "template_variables",
    "text_until_mark",
]

MAX_MESSAGE_DEPTH = 32
#: Marks the end of a text in a rendering: no template has a reason to change it.
MARK = "STERNA0END0OF0TEXT"
_REASONING = ("reasoning_content", "thinking", "reasoning")
#: Roles whose messages may have no content: models and tools may say nothing.
_ANSWERS = ("assistant", "tool", "function")
_RESERVED = ("messages", "tools", "documents", "add_generation_prompt")


def check_messages(messages: object) -> None:
    """Raise RequestError unless `messages` is a list of mappings with a role and content."""
    remedy = 'pass [{"role": "user", "content": "..."}]'
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        kind = type(messages).__name__
        raise RequestError(f"messages: must be a list of mappings, but got {kind}; {remedy}")
    if not messages:
        raise RequestError(f"messages: must not be empty; {remedy}")
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            kind = type(message).__name__
            raise RequestError(f"messages[{i}]: must be a mapping, but got {kind}; {remedy}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role:
            raise RequestError(f"messages[{i}]: must have a role, but got {shown(role)}; {remedy}")
        if not isinstance(content, (str, Sequence, type(None))):
            kind = type(content).__name__
            raise RequestError(f"messages[{i}]: content must be text, but got {kind}; {remedy}")
        calls = message.get("tool_calls") or ()
        if not isinstance(calls, (list, tuple)) or not all(isinstance(c, Mapping) for c in calls):
            raise RequestError(
                f"messages[{i}]: tool_calls must be a list of mappings, but got {shown(calls)}"
            )


def template_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message in the form that templates expect, as transformers does.

    Keys without a value are dropped (OpenAI's API writes "content": null), and reasoning gets every
    name that templates use. An answer without text and calls has its refusal as content, or an
    empty text, which templates read without asking.
    """
    given = {key: value for key, value in message.items() if value is not None}
    if given.get("role") in _ANSWERS and "content" not in given and not given.get("tool_calls"):
        given["content"] = given.get("refusal", "")
    reasoning = next((given[key] for key in _REASONING if key in given), None)
    if reasoning is None:
        return given
    return {"thinking": reasoning, **given, "reasoning_content": reasoning}


def json_objects(value: object, name: str) -> Any:
    """Return a checked copy of a list of JSON objects; None for None. Raises RequestError."""
    if value is None:
        return None
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    wrong = [item for item in items if not isinstance(item, Mapping)]
    if wrong or not isinstance(value, (list, tuple)):
        kind = type((wrong or [value])[0]).__name__
        raise RequestError(f"{name}: must be a list of JSON objects, but got {kind}; pass dicts")
    return json_copy(value, name)


def template_variables(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return checked copies of template_options. Raises RequestError."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        kind = type(values).__name__
        raise RequestError(f"template_options: must be a mapping, but got {kind}; pass a dict")
    for name in values:
        if not isinstance(name, str) or not name.isidentifier() or name in _RESERVED:
            raise RequestError(
                f"template_options: must be names other than {', '.join(_RESERVED)}, "
                f"but got {shown(name)}; rename it"
            )
    return {name: json_copy(value, name) for name, value in values.items()}


def mark_end(messages: list[dict[str, Any]]) -> None:
    """Append `MARK` to the text of the last message. Raises RequestError if it has no text."""
    content = messages[-1].get("content")
    parts = content if isinstance(content, list) else [messages[-1]]
    key = "text" if isinstance(content, list) else "content"
    texts = [part for part in parts if isinstance(part, dict) and isinstance(part.get(key), str)]
    if not texts:
        raise RequestError(
            "continue_final_message: the last message must have text, but it has none; "
            "add an assistant message to continue"
        )
    texts[-1][key] += MARK + " "


def text_until_mark(rendered: str) -> str:
    """Return the text before `MARK`, without trailing space if the template trims messages."""
    before, mark, after = rendered.rpartition(MARK)
    if not mark:
        raise RequestError(
            "continue_final_message: the template must write the last message, but left it out; "
            "end the messages with one of the assistant"
        )
    before = before.replace(MARK + " ", "").replace(MARK, "")  # the template may write a text twice
    return before if after.startswith(" ") else before.rstrip()


def json_copy(value: object, name: str) -> Any:
    """Copy a value of JSON's types, so that a template meets no other. Raises RequestError."""
    left = MAX_CHARS

    def copy(item: object, depth: int) -> Any:
        nonlocal left
        left -= 8 + (len(item) if isinstance(item, str) else 0)
        if left < 0:
            raise RequestError(
                f"{name}: must be under {MAX_CHARS} characters, but got more; shorten it"
            )
        if depth > MAX_MESSAGE_DEPTH:
            raise RequestError(
                f"{name}: must be at most {MAX_MESSAGE_DEPTH} levels deep, but got more; flatten it"
            )
        if isinstance(item, str):
            return str(item)
        if item is None or isinstance(item, (bool, float)):
            return item
        if isinstance(item, int) and item.bit_length() <= 1024:
            return int(item)
        if isinstance(item, Mapping) and all(isinstance(key, str) for key in item):
            return {copy(key, depth + 1): copy(value, depth + 1) for key, value in item.items()}
        if isinstance(item, (list, tuple)):
            return [copy(value, depth + 1) for value in item]
        raise RequestError(
            f"{name}: must hold text, numbers, lists and mappings, but got "
            f"{type(item).__name__}; convert it first"
        )

    return copy(value, 0)
