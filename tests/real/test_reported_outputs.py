"""What models wrote according to public reports, read by the templates that they come with."""

from __future__ import annotations

import json
from typing import Any

import assets
import pytest
from tool_calls import Calls, tool

from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.tool_choice import ToolChoice

TEMPLATES = assets.llama_cpp() / "models" / "templates"
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "cmd": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"},
        "l": {"type": "array", "items": {"type": "string"}},
        "x": {"anyOf": [{"type": "integer"}, {"type": "string"}]}, "any": {},
    },
}  # fmt: skip
DEEPSEEK, GPT_OSS = "deepseek-ai-DeepSeek-V4", "openai-gpt-oss-120b"
FINAL = "<|start|>assistant<|channel|>final<|message|>Hi"


def dsml(*arguments: tuple[str, str, str]) -> str:
    """A call of DeepSeek, whose tags say whether a value is a text."""
    tags = "\n".join(
        f'<｜DSML｜parameter name="{name}" string="{is_text}">{value}</｜DSML｜parameter>'
        for name, is_text, value in arguments
    )
    call = f'<｜DSML｜invoke name="run">\n{tags}\n</｜DSML｜invoke>'
    return f"<｜DSML｜tool_calls>\n{call}\n</｜DSML｜tool_calls>"


def glm(cmd: str, n: str) -> str:
    """A call of GLM, of tags and values as they stand."""
    return f"<tool_call>run\n<arg_key>cmd</arg_key>\n{cmd}<arg_key>n</arg_key>\n{n}</tool_call>"


#: A template, an answer, and the expected calls, content and reasoning.
CASES: list[tuple[str, str, Calls, str, str]] = [
    # the schema counts more than what a tag says of its value
    (DEEPSEEK, dsml(("cmd", "true", "ls"), ("b", "true", "true"), ("n", "true", "3")),
     [("run", {"cmd": "ls", "b": True, "n": 3})], "", ""),
    (DEEPSEEK, dsml(("cmd", "false", "007"), ("l", "true", '["a"]')),
     [("run", {"cmd": "007", "l": ["a"]})], "", ""),
    # where the schema leaves it open, the tag counts
    (DEEPSEEK, dsml(("x", "true", "3"), ("any", "true", "true")),
     [("run", {"x": "3", "any": "true"})], "", ""),
    (DEEPSEEK, dsml(("x", "false", "3"), ("any", "false", "true")),
     [("run", {"x": 3, "any": True})], "", ""),
    # the line break before a tag is none of a value that its own tag does not close
    ("GLM-4.6", glm("<arg_value>ls\n", "<arg_value>3\n"), [("run", {"cmd": "ls", "n": 3})], "", ""),
    ("GLM-4.6", glm("<arg_value>ls\n</arg_value>\n", "<arg_value>3</arg_value>\n"),
     [("run", {"cmd": "ls\n", "n": 3})], "", ""),
    # a thought, or nothing at all, in the place of a header
    (GPT_OSS, "<|channel|>We need<|end|><|start|>assistant<|channel|>analysis<|message|>hm<|end|>"
     + FINAL, [], "Hi", "We needhm"),
    (GPT_OSS, f"<|channel|>??<|end|>{FINAL}", [], "Hi", "??"),
    (GPT_OSS, f"<|channel|>commentary to=assistant<|channel|>commentary?<|end|>{FINAL}", [], "Hi",
     " to=assistant<|channel|>commentary?"),
    (GPT_OSS, "<|channel|>final Hi<|end|>", [], " Hi", ""),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "calls", "content", "reasoning"), CASES)
def test_reported(name: str, text: str, calls: Calls, content: str, reasoning: str) -> None:
    source = (TEMPLATES / f"{name}.jinja").read_text()
    template = ChatTemplate.from_source(source, {"bos_token": "<BOS>", "eos_token": "<EOS>"})
    tools = ToolChoice.of_tools([tool("run", SCHEMA)])
    form = AnswerFormat(template, tools, ReasoningState.FREE)
    for step in (len(text), 1, 7):
        parser, said = form.parser(), {"content": "", "reasoning_content": ""}
        made: list[list[str]] = []
        pieces = [text[i : i + step] for i in range(0, len(text), step)]
        for delta in [delta for piece in pieces for delta in parser.feed(piece)] + parser.end():
            if delta.kind != "tool_calls":
                said[delta.kind] += delta.text
            elif delta.id:
                made.append([delta.name, ""])
            else:
                made[delta.index][1] += delta.text
        found = [(called, json.loads(arguments)) for called, arguments in made]
        assert (found, said["content"], said["reasoning_content"]) == (calls, content, reasoning)
