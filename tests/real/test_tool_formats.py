"""Calls of every family: what a published template writes, its grammar allows, and is parsed."""

from __future__ import annotations

import pickle
from typing import Any

import assets
import pytest
from tool_calls import USER, allowed, constrained, parsed, rendered, tool

from sterna import LLM
from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.engine import Request
from sterna.llm.chat_request import ChatRequest
from sterna.llm.tool_call_formats import format_of
from sterna.outputs import Completion
from sterna.server.custom_tools import parser_of

TEMPLATES = assets.llama_cpp() / "models" / "templates"
DEEP = {
    "type": "object",
    "properties": {
        "on": {"type": "boolean"}, "list": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["on", "list"],
}  # fmt: skip
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Where."},
        "days": {"type": "integer", "description": "How many."},
        "ratio": {"type": "number", "description": "How much."},
        "wet": {"type": "boolean", "description": "Whether."},
        "tags": {"type": "array", "items": {"type": "string"}, "description": "Which."},
        "deep": {**DEEP, "description": "What.", "additionalProperties": False},
    },
    "required": ["city"],
}
ARGUMENTS = {
    "city": "Zürich <b> & 'x' \"東京\" 1", "days": 3, "ratio": 1.5, "wet": True,
    "tags": ["a", "b c"], "deep": {"on": False, "list": [1, 2]},
}  # fmt: skip
PLAIN = {**ARGUMENTS, "city": "Rome <b> & (x)"}
CALLS = {
    "one": [("get_weather", ARGUMENTS)],
    "two": [("get_weather", PLAIN), ("other-tool", {"city": "B"})],
    "none": [("other-tool", {})],
}
SCHEMAS = {"get_weather": SCHEMA, "other-tool": {**SCHEMA, "required": []}}
#: What fails, and why.
MISSES = {
    ("fireworks-ai-llama-3-firefunction-v2", ""): "reads `functions`, which nobody sets",
    ("Reka-Edge", "one"): "writes escapes of Unicode, which a constrained call never does",
    ("deepseek-ai-DeepSeek-V4", "none"): "writes a blank line in place of no arguments",
    ("deepseek-ai-DeepSeek-V4-Flash-0731", "none"): "as DeepSeek-V4",
}
#: Templates that take an object in a schema for a dictionary whose values have a type.
FLAT = ("CohereForAI-c4ai-command-r-plus-tool_use",)
#: Templates that write the first of several calls, or refuse several.
SINGLE = ("meta-llama", "GigaChat3", "openai-gpt-oss")


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


def template(name: str) -> ChatTemplate:
    tokens = {"bos_token": "<BOS>", "eos_token": "<EOS>"}
    return ChatTemplate.from_source((TEMPLATES / f"{name}.jinja").read_text(), tokens)


NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))


@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_what_the_template_writes(llm: LLM, name: str) -> None:
    """Rendered, allowed by the grammar, and parsed, in whole and in pieces."""
    source = template(name)
    for kind, calls in CALLS.items():
        missed = {(name, ""), (name, kind)} & MISSES.keys()
        single = kind == "two" and any(part in name for part in SINGLE)
        if missed or (single and "meta-llama" in name):
            continue
        shown = {"type": "object", "properties": {}} if name in FLAT else SCHEMA
        text = rendered(source, calls, [tool(n, shown) for n in SCHEMAS])
        constraint = constrained(llm.constraints, format_of(source), SCHEMAS)
        wanted = calls[:1] if single else calls
        for step in (0, 1, 7):
            found, content = parsed(source, text, SCHEMAS, step)
            assert found == wanted, (kind, step)
            assert content == "", (kind, step)
        assert allowed(constraint, llm.constraints, text) == text, kind
    assert len(NAMES) - len({n for n, _ in MISSES}) >= 65


def same_but_ids(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have no ids, which are random where the model writes none."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return {**message, "tool_calls": calls}


@pytest.mark.parametrize("name", [n for n in NAMES if (n, "") not in MISSES])
def test_an_answer_is_read_behind_its_prompt(
    llm: LLM, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reasoning, content and calls, by the parser that `make_chat` chooses, which the server has
    as well."""
    llm.renderer.template = source = template(name)
    shown = {"type": "object", "properties": {}} if name in FLAT else SCHEMA
    tools, make = [tool(n, shown) for n in SCHEMAS], llm.requests.make_several

    def short(tokens: list[int], n: int, *_: Any, **given: Any) -> list[Request]:
        assert tokens == llm.chat_tokens([USER], tools=tools)
        return make(tokens[:1], n, {})  # the prompt may be longer than nano's context

    monkeypatch.setattr(llm.requests, "make_several", short)
    chat = ChatRequest.of_options([USER], {"tools": tools})
    parser = llm.requests.make_chat(chat)[0].completion.parser
    call = rendered(source, CALLS["one"], tools)
    marks = source.reasoning_marks
    state = source.reasoning_state(llm.chat_prompt([USER], tools=tools))
    for before in ("", "Why not?"):
        text = f"{before}{call}"
        if marks and not format_of(source).messages and state is not ReasoningState.CLOSED:
            opens = marks.opens if state is ReasoningState.FREE else ""
            text = f"{opens}As so.{marks.closes}{text}"
        done = Completion(text=text, parser=parser)
        said = parser_of(done, chat.tools).message(text)
        assert same_but_ids(said) == same_but_ids({**done.message, **parser().message(text)})
        assert done.content == (said["content"] or "")
        assert done.reasoning == said.get("reasoning_content", "")
        assert done.tool_calls == pickle.loads(pickle.dumps(done)).tool_calls
        if not before:
            assert [one["function"]["name"] for one in done.tool_calls] == ["get_weather"]
            assert done.message["tool_calls"] == done.tool_calls
