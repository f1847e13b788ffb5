"""System messages in any position, for templates that take one, several or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.errors import RequestError

__all__ = ["render_with_system"]

Messages = list[dict[str, Any]]


def render_with_system(messages: Messages, render: Callable[[Messages], str]) -> str:
    """Render a conversation such that the prompt has the text of all its system messages.

    Leaves them in place if the template renders them there. Otherwise joins them into one message
    at the start, or puts them before the text of the first user message. RequestError if none of
    these works.
    """
    texts = [_text(m).strip() for m in messages if m["role"] == "system"]
    rendered, refusal = list[str](), None
    for arrange in (list, _joined_at_start, _in_first_user_message) if texts else (list,):
        try:
            rendered.append(render(arrange(messages)))
        except RequestError as error:
            refusal = refusal or error
        else:
            if all(text in rendered[-1] for text in texts):
                return rendered[-1]
    if not rendered:
        assert refusal is not None
        raise refusal
    return rendered[0]  # the template rewrites them


def _text(message: dict[str, Any]) -> str:
    return message["content"] if isinstance(message.get("content"), str) else ""


def _split(messages: Messages) -> tuple[str, Messages]:
    """Return the joined text of the system messages, and the other messages."""
    system = "\n\n".join(_text(m) for m in messages if m["role"] == "system")
    return system, [m for m in messages if m["role"] != "system"]


def _joined_at_start(messages: Messages) -> Messages:
    system, others = _split(messages)
    return [{"role": "system", "content": system}, *others]


def _in_first_user_message(messages: Messages) -> Messages:
    system, others = _split(messages)
    for i, message in enumerate(others):
        if message["role"] == "user":
            opening, content = f"{system}\n\n", message.get("content")
            if isinstance(content, list):  # with images
                others[i] = {**message, "content": [{"type": "text", "text": opening}, *content]}
            else:
                others[i] = {**message, "content": opening + _text(message)}
            break
    return others
