"""Arguments of tool calls: objects for most templates, text for some, or cut off."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

__all__ = ["object_of", "with_decoded_arguments", "with_other_arguments", "with_short_ids"]

_TRIES = 4  #: how many of the last ends of members to cut at before giving a text up


def with_decoded_arguments(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose calls have their arguments as objects, as most templates expect.

    Arguments that are no JSON, such as those that max_tokens cut off, stay text.
    """
    decoded = []
    for message in map(dict, messages):
        if isinstance(calls := message.get("tool_calls"), (list, tuple)):
            message["tool_calls"] = [_decoded(call) for call in calls]
        decoded.append(message)
    return decoded


def _decoded(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if isinstance(function, Mapping) and isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            return {**call, "function": {**function, "arguments": json.loads(arguments)}}
    return call


def with_other_arguments(messages: list[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    """Yield messages with the arguments of tool calls as objects instead of text, then the reverse.

    A template may accept one form only. Forms equal to the given messages are left out.
    """
    for kind, spell in ((str, object_of), (dict, _text_of)):
        if any(isinstance(call.get("arguments"), kind) for call in _calls(messages)):
            yield [_with(message, kind, spell) for message in messages]


def with_short_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages whose ids of calls have nine characters, as Mistral's templates demand."""
    copied: list[dict[str, Any]] = json.loads(json.dumps(messages))
    for message in copied:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            if isinstance(call, dict) and "id" in call:
                call["id"] = _short(call["id"])
        if "tool_call_id" in message:
            message["tool_call_id"] = _short(message["tool_call_id"])
    return copied


def _short(id: object) -> str:
    text = str(id)
    return text if len(text) == 9 else hashlib.sha256(text.encode()).hexdigest()[:9]


def _calls(messages: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            function = call.get("function", call) if isinstance(call, dict) else None
            if isinstance(function, dict):
                yield function


def _with(message: dict[str, Any], kind: type, spell: Callable[[Any], Any]) -> dict[str, Any]:
    copied: dict[str, Any] = json.loads(json.dumps(message))
    for call in _calls([copied]):
        if isinstance(call.get("arguments"), kind):
            call["arguments"] = spell(call["arguments"])
    return copied


def _text_of(arguments: Any) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def object_of(text: str) -> dict[str, Any]:
    """Parse a JSON object; if the text was cut off, keep the members whose values have begun.

    Returns {} for anything else.
    """
    ends, closing, quoted, escaped = [(0, "")], "", False, False
    for i, c in enumerate(text):
        if quoted:
            quoted, escaped = c != '"' or escaped, c == "\\" and not escaped
        elif c == '"':
            quoted = True
        elif c in "{[":
            closing = {"{": "}", "[": "]"}[c] + closing
            ends.append((i + 1, closing))
        elif c in "}]":
            closing = closing[1:]
        elif c == ",":
            ends.append((i, closing))
    cut = (text[:end] + left for end, left in ends[: -_TRIES - 1 : -1])
    for tried in (text + closing, text + '"' + closing, *cut):
        try:
            value = json.loads(tried)
        except (ValueError, RecursionError):
            continue
        return value if isinstance(value, dict) else {}
    return {}
