"""Reasoning: what a model thinks between <think> and </think> before the content of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["CLOSE", "OPEN", "ReasoningState", "disables_reasoning", "split_reasoning"]

OPEN, CLOSE = "<think>", "</think>"


class ReasoningState(Enum):
    """How an answer begins.

    OPENED: within reasoning that the prompt has opened. FREE: with reasoning or without. CLOSED:
    with the content.
    """

    OPENED = "opened"
    FREE = "free"
    CLOSED = "closed"

    @classmethod
    def after_prompt(cls, prompt: str, reasons: bool) -> ReasoningState:
        """Return the state after a prompt. reasons: whether its template mentions reasoning."""
        text = prompt.rstrip()
        if text.endswith(OPEN):
            return cls.OPENED
        return cls.FREE if reasons and not text.endswith(CLOSE) else cls.CLOSED

    @classmethod
    def after_start(cls, answer: str) -> ReasoningState:
        """Return the state after the start of an answer that is to be continued."""
        return cls.OPENED if answer.rfind(OPEN) > answer.rfind(CLOSE) else cls.CLOSED


def disables_reasoning(variables: Mapping[str, Any]) -> bool:
    """Whether variables of a template turn reasoning off, as Qwen, DeepSeek or OpenAI spell it."""
    said = (variables.get("enable_thinking"), variables.get("thinking"))
    return False in said or variables.get("reasoning_effort") == "none"


def split_reasoning(text: str, opened: bool) -> tuple[str, str]:
    """Split an answer into reasoning and content. opened: whether the prompt opened reasoning."""
    inside = text if opened else text.lstrip().removeprefix(OPEN)
    if not opened and inside == text.lstrip():
        return "", text
    reasoning, closed, rest = inside.partition(CLOSE)
    return reasoning.lstrip("\n"), rest.lstrip("\n") if closed else ""
