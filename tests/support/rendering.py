"""Conversations and options that templates are held to, and what transformers makes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from checkpoint_factory import BOS, EOS, tokenizer
from transformers import PreTrainedTokenizerFast

from sterna.chat import ChatTemplate

SYSTEM = {"role": "system", "content": ' Answer in "short" \n'}
USER = {"role": "user", "content": "  What is 1 < 2 & é日本?\n"}
BOT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes. "}
CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {
            "id": "abcdefghi",
            "type": "function",
            "function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None, "é"]}},
        }
    ],
}
RESULT = {"role": "tool", "content": "3.5", "tool_call_id": "abcdefghi"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Adds <numbers>",
            "parameters": {"type": "object", "properties": {"a": {"type": "number"}}},
        },
    }
]
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [USER, BOT, USER],
    "system and turns": [SYSTEM, USER, BOT, USER, BOT],
    "tool": [USER, CALL, RESULT],
    "after a tool": [SYSTEM, USER, CALL, RESULT, BOT, USER],
    "reasoning": [USER, {**BOT, "reasoning": "because"}, USER, {**BOT, "thinking": "so"}],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
}
OPTIONS: list[dict[str, Any]] = [
    {},
    {"tools": TOOLS},
    {"add_generation_prompt": False},
    {"variables": {"enable_thinking": False, "date_string": "1 Jan 2030"}},
    {"variables": {"tools_in_user_message": False}, "tools": TOOLS},
    {"continue_final_message": True},
]


def oracle() -> PreTrainedTokenizerFast:
    """transformers' renderer, with a tokenizer of these tests."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token=BOS, eos_token=EOS)


def rendered(
    oracle: PreTrainedTokenizerFast, source: str, messages: list[dict[str, Any]], options: Any
) -> str:
    """transformers' text; raises what it raises."""
    given = {"add_generation_prompt": not options.get("continue_final_message"), **options}
    variables = given.pop("variables", {})
    text = oracle.apply_chat_template(
        messages, chat_template=source, tokenize=False, **given, **variables
    )
    # Left over where a template writes the last message twice.
    return str(text).replace("CONTINUE_FINAL_MESSAGE_TAG ", "")


def expected(
    oracle: PreTrainedTokenizerFast, source: str, messages: list[dict[str, Any]], options: Any
) -> str | None:
    """transformers' text, None where it refuses."""
    try:
        return rendered(oracle, source, messages, options)
    except Exception:
        return None


def load(folder: Path, source: str) -> ChatTemplate:
    tokens = {"bos_token": BOS, "eos_token": EOS}
    return ChatTemplate(folder / "chat_template.jinja", {"default": source}, tokens)
