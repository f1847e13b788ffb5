"""Grammars of answers with tools, of published templates: what a model may write, and end with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import assets
import numpy as np
import pytest
from tool_calls import byte_tokenizer, tool

from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.engine.decoding.constraints import Constraints
from sterna.engine.decoding.reasoning_budget import ReasoningBudget
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.tool_choice import ToolChoice

SCHEMA = {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
    "additionalProperties": False,
}  # fmt: skip
HERMES = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
QWEN = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n"
    "</tool_call>"
)
KIMI = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
    '<|tool_call_argument_begin|>{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
)
DEEPSEEK = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
    '{"city": "Paris"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>'
)
#: Templates, calls of their models, and the marks of these calls.
CALLS = {
    "Qwen-Qwen3-0.6B": (HERMES, ("<tool_call>", "</tool_call>")),
    "Qwen3.5-4B": (QWEN, ("<tool_call>", "</tool_call>")),
    "Kimi-K2-Thinking": (
        KIMI,
        ("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
         "<|tool_call_end|>", "<|tool_calls_section_end|>"),
    ),
    "deepseek-ai-DeepSeek-V3.1": (
        DEEPSEEK,
        ("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>",
         "<｜tool▁calls▁end｜>"),
    ),
}  # fmt: skip
THINK = ("<think>", "</think>")


def template(name: str) -> ChatTemplate:
    path = assets.llama_cpp() / "models" / "templates" / f"{name}.jinja"
    return ChatTemplate.from_source(path.read_text(encoding="utf-8"), {})


def judge(
    folder: Path, name: str, special: tuple[str, ...], choice: Any = None, strict: bool = False,
    content: str | None = None,
) -> Callable[[str], str]:  # fmt: skip
    """What a grammar says to an answer within reasoning: it "ends", "goes on" or is "refused".

    special: the special tokens. content: a pattern of the content.
    """
    tokenizer = byte_tokenizer(folder, [*special, "<|im_end|>"], "<|im_end|>")
    constraints = Constraints(tokenizer, tokenizer.vocab_size)
    tools = [tool(name, SCHEMA) for name in ("get_weather", "get_time")]
    for one in tools:
        one["function"]["strict"] = strict
    answers = AnswerFormat(
        template(name), ToolChoice.of_tools(tools, choice), ReasoningState.OPENED
    )
    made = answers.constraint(constraints, constraints.regex(content) if content else None)
    assert made is not None

    def said(text: str) -> str:
        ids, matcher = tokenizer.encode(text, add_special=False), made.matcher()
        if matcher.valid(ids) < len(ids):
            return "refused"
        matcher.follow(np.array(ids, np.int32))
        (mask,) = matcher.masks([], tokenizer.eos_ids)
        end = next(iter(tokenizer.eos_ids))
        return "ends" if mask[end // 32] >> (end % 32) & 1 else "goes on"

    return said


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_open_reasoning(tmp_path: Path, name: str, special: bool) -> None:
    """Whether marks are special tokens or texts, and whether a call is free or required."""
    call, marks = CALLS[name]
    tokens = (*marks, *THINK) if special else ()
    free = judge(tmp_path, name, tokens)
    described = HERMES if "V3.1" in name else call
    assert free("Why?") == "ends"
    for text in (
        f"Why?\n{call}", f"Why?{call}", f"Why?</think>\n\nSo.\n\n{call}",
        f"I draft {call}</think>Hi.", f"Why?\n{described}", "Why?</think>Hi.",
    ):  # fmt: skip
        assert free(text) == "ends", text
    required = judge(tmp_path, name, tokens, "required")
    for text, verdict in (
        ("Why?", "goes on"), (f"Why?\n{described}", "ends"), (described, "ends"),
        (f"Why?</think>\n\n{described}", "ends"), ("Why?</think>Hi.", "refused"),
    ):  # fmt: skip
        assert required(text) == verdict, text
    either = judge(tmp_path, name, tokens, content="[0-9]")
    for text, verdict in (
        ("Why?", "goes on"), (f"Why?\n{described}", "ends"), ("Why?</think>7", "ends"),
        ("Why?</think>x", "refused"),
    ):  # fmt: skip
        assert either(text) == verdict, text


def test_a_mark_alone_opens_no_call(tmp_path: Path) -> None:
    """A text may mention it, unless a strict schema must hold; wrong calls are refused alike."""
    free = judge(tmp_path, "Qwen-Qwen3-0.6B", ())
    strict = judge(tmp_path, "Qwen-Qwen3-0.6B", (), strict=True)
    for text, verdicts in (
        ("I may write <tool_call> here.</think>\n\nHi.", ("ends", "ends")),
        ("Why?</think>\n\nUse <tool_call> tags.", ("ends", "refused")),
        ("Why?\n" + HERMES.replace("city", "town"), ("ends", "refused")),
        ("Why?</think>\n\n" + HERMES.replace("city", "town"), ("ends", "refused")),
    ):  # fmt: skip
        assert (free(text), strict(text)) == verdicts, text


def test_a_budget_does_not_cut_a_call(tmp_path: Path) -> None:
    """Reasoning that a call has ended is not closed within that call."""
    tokenizer = byte_tokenizer(tmp_path, ["<|im_end|>"], "<|im_end|>")
    tools = ToolChoice.of_tools([tool("get_weather", SCHEMA)])
    answers = AnswerFormat(template("Qwen-Qwen3-0.6B"), tools, ReasoningState.OPENED)
    budget = answers.budget(10, None, tokenizer)
    assert isinstance(budget, ReasoningBudget)
    text = f"Why?\n{HERMES}"
    for end, due in ((8, False), (10, True), (text.index("Paris"), False), (len(text), False)):
        ids = tokenizer.encode(text[:end], add_special=False)
        assert (budget.after(ids).due() is not None) is due, text[:end]
