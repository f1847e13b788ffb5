"""Budgets of reasoning, from the fields of a request and the server's settings."""

from __future__ import annotations

from typing import Any

from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState, Thoughts
from sterna.engine.decoding.thinking_budget import ThinkingBudget
from sterna.server.errors import invalid
from sterna.server.tool_call_formats import ToolCallFormat
from sterna.tokenizer import Tokenizer

__all__ = ["checked_budget", "thinking_of", "thoughts_of", "turn_off"]

#: Tokens of reasoning for an effort, if the template does not read it; others have no limit.
EFFORTS = {"minimal": 256, "low": 1024, "medium": 4096}


def checked_budget(fields: dict[str, Any], default: int | None) -> int | None:
    """Return the first budget that is given among fields; None for none. ApiError 400.

    default: the server's budget. -1 is no limit.
    """
    for name, value in fields.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < -1:
            raise invalid(name, "must be a number of tokens, or -1 for no limit", value)
        return None if value < 0 else value
    return default


def turn_off(options: dict[str, Any], budget: int | None) -> dict[str, Any]:
    """Return variables of a template, which turn reasoning off if the budget is 0."""
    return {"enable_thinking": False, **options} if budget == 0 else options


def thoughts_of(
    template: ChatTemplate | None, call_format: ToolCallFormat | None, required: bool
) -> Thoughts | None:
    """Return the markers of reasoning in a model's answers; None if it has none.

    required: whether a call must follow the reasoning.
    """
    messages = call_format.messages if call_format else None
    if messages is None:
        return template.thoughts if template else None
    if not messages.thought:
        return None
    closing = messages.separator + ("" if required else messages.content)
    return Thoughts(messages.thought, messages.ends, closing=closing)


def thinking_of(
    template: ChatTemplate,
    thoughts: Thoughts | None,
    state: ReasoningState,
    budget: int | None,
    effort: object,
    tokenizer: Tokenizer,
) -> ThinkingBudget | None:
    """Return the budget of an answer's reasoning; None for no limit.

    effort: the request's reasoning_effort, which sets a budget if the template does not read it.
    """
    if budget is None and not template.mentions("reasoning_effort"):
        budget = EFFORTS.get(str(effort))
    if budget is None or thoughts is None or state is ReasoningState.CLOSED:
        return None
    return ThinkingBudget.of_marks(thoughts, state is ReasoningState.OPENED, budget, tokenizer)
