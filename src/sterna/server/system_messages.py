"""System messages, wherever they stand: a template has a place for one, for all, or for none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sterna.errors import RequestError

__all__ = ["render_with_system"]

Messages = list[dict[str, Any]]


def render_with_system(messages: Messages, render: Callable[[Messages], str]) -> str:
    """The prompt of a conversation, with the text of all its system messages.

    As they stand, where the template writes them there; else joined in one at the beginning; else
    at the head of the first message of a user. RequestError where the template takes none of these.
    """
    texts = [_text(m).strip() for m in messages if m["role"] == "system"]
    rendered, refusal = list[str](), None
    for form in (list, _at_the_beginning, _within_the_first) if texts else (list,):
        try:
            rendered.append(render(form(messages)))
        except RequestError as error:
            refusal = refusal or error
        else:
            if all(text in rendered[-1] for text in texts):
                return rendered[-1]
    if not rendered:
        assert refusal is not None
        raise refusal
    return rendered[0]  # it writes them in words of its own


def _text(message: dict[str, Any]) -> str:
    return message["content"] if isinstance(message.get("content"), str) else ""


def _parted(messages: Messages) -> tuple[str, Messages]:
    """The joined text of system messages, and the others."""
    system = "\n\n".join(_text(m) for m in messages if m["role"] == "system")
    return system, [m for m in messages if m["role"] != "system"]


def _at_the_beginning(messages: Messages) -> Messages:
    system, others = _parted(messages)
    return [{"role": "system", "content": system}, *others]


def _within_the_first(messages: Messages) -> Messages:
    system, others = _parted(messages)
    for i, message in enumerate(others):
        if message["role"] == "user":
            others[i] = {**message, "content": f"{system}\n\n{_text(message)}"}
            break
    return others
