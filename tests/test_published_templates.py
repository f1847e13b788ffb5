"""Templates in the published styles render as transformers' apply_chat_template renders them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from checkpoint_factory import BOS, EOS, tokenizer
from published_templates import PUBLISHED
from transformers import PreTrainedTokenizerFast

from sterna.chat import ChatTemplate
from sterna.errors import RequestError

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


@pytest.fixture(scope="module")
def oracle() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer(), bos_token=BOS, eos_token=EOS)


def expected(
    oracle: PreTrainedTokenizerFast, source: str, messages: list[dict[str, Any]], options: Any
) -> str | None:
    """transformers' text, None where it refuses."""
    given = {"add_generation_prompt": not options.get("continue_final_message"), **options}
    variables = given.pop("variables", {})
    try:
        text = oracle.apply_chat_template(
            messages, chat_template=source, tokenize=False, **given, **variables
        )
        # Left over where a template writes the last message twice.
        return str(text).replace("CONTINUE_FINAL_MESSAGE_TAG ", "")
    except Exception:
        return None


def load(folder: Path, source: str) -> ChatTemplate:
    tokens = {"bos_token": BOS, "eos_token": EOS}
    return ChatTemplate(folder / "chat_template.jinja", {"default": source}, tokens)


@pytest.mark.parametrize("name", PUBLISHED)
def test_same_text_as_transformers(
    oracle: PreTrainedTokenizerFast, tmp_path: Path, name: str
) -> None:
    template = load(tmp_path, PUBLISHED[name])
    equal = 0
    for messages in CONVERSATIONS.values():
        for options in OPTIONS:
            text = expected(oracle, PUBLISHED[name], messages, options)
            if text is None:
                with pytest.raises(RequestError):
                    template.render(messages, **options)
            else:
                assert template.render(messages, **options) == text, (messages, options)
                equal += 1
    assert equal >= 15  # of 48: some refuse tools or parts


def test_the_end_of_a_turn(tmp_path: Path) -> None:
    ends = {
        "llama3": "<|eot_id|>",
        "qwen3": "<|im_end|>",
        "chatml": "<|im_end|>",
        "bitnet": "<|eot_id|>",
        "mistral": EOS,
        "zephyr": EOS,
        "falcon3": EOS,
    }
    for name, end in ends.items():
        template = load(tmp_path, PUBLISHED[name])
        assert template.after_answer().startswith(end), name


def test_a_long_conversation_fits_the_sandbox(tmp_path: Path) -> None:
    """400 exchanges of a page each: what real conversations need is far from the limits."""
    messages = [SYSTEM, *[{**USER, "content": "word " * 500}, {**BOT, "content": "y " * 500}] * 400]
    for name, source in PUBLISHED.items():
        template = load(tmp_path, source)
        assert len(template.render(messages)) > (1_000_000 if name != "features" else 10_000)
