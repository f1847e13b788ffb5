"""Thoughts: what an answer says to itself between <think> and </think>, before what it says."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["CLOSE", "OPEN", "Thoughts", "parted", "without_thoughts"]

OPEN, CLOSE = "<think>", "</think>"


class Thoughts(Enum):
    """How an answer begins.

    OPENED: within thoughts, since the prompt has opened them. FREE: with thoughts or without.
    CLOSED: behind them.
    """

    OPENED = "opened"
    FREE = "free"
    CLOSED = "closed"

    @classmethod
    def at_the_end(cls, prompt: str, family: bool) -> Thoughts:
        """Of an answer to a prompt. family: whether its template knows thoughts."""
        text = prompt.rstrip()
        if text.endswith(OPEN):
            return cls.OPENED
        return cls.FREE if family and not text.endswith(CLOSE) else cls.CLOSED

    @classmethod
    def within(cls, answer: str) -> Thoughts:
        """Of an answer that goes on with this start of it."""
        return cls.OPENED if answer.rfind(OPEN) > answer.rfind(CLOSE) else cls.CLOSED


def without_thoughts(variables: Mapping[str, Any]) -> bool:
    """Whether a template's variables say that the answer has none, in the words of Qwen, DeepSeek
    and OpenAI."""
    said = (variables.get("enable_thinking"), variables.get("thinking"))
    return False in said or variables.get("reasoning_effort") == "none"


def parted(text: str, opened: bool) -> tuple[str, str]:
    """An answer's thoughts, and what it says behind them. opened: whether it begins within them."""
    inside = text if opened else text.lstrip().removeprefix(OPEN)
    if not opened and inside == text.lstrip():
        return "", text
    thoughts, closed, rest = inside.partition(CLOSE)
    return thoughts.lstrip("\n"), rest.lstrip("\n") if closed else ""
