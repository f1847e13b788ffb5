"""Tool calls in the formats of published templates: shown, enforced, parsed and sent back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import assets
import jsonschema_rs
import pytest

from sterna import LLM
from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.chat_request import ChatRequest
from sterna.llm.tool_call_formats import for_template as told
from sterna.llm.tool_call_formats import format_of, hermes, llama3, qwen3_coder
from sterna.llm.tool_choice import ToolChoice
from sterna.server.chat_messages import render_prompt
from sterna.server.tool_choice import parse_tools

FORMS = {
    "Qwen-Qwen2.5-7B-Instruct": hermes, "Qwen-Qwen3-0.6B": hermes,
    "ibm-granite-granite-4.0": hermes,
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": hermes,
    "Qwen3.5-4B": qwen3_coder, "Qwen3-Coder": qwen3_coder,
    "meta-llama-Llama-3.1-8B-Instruct": llama3, "meta-llama-Llama-3.3-70B-Instruct": llama3,
}  # fmt: skip
#: Templates whose format is derived, or known by the template's text.
OWN = (
    "mistralai-Mistral-Nemo-Instruct-2407", "GLM-4.6", "google-gemma-4-31B-it",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use",
)  # fmt: skip
#: Templates without a place for tools, or that mention <tool_call> or "parameters" only.
NO_FORM = (
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B", "google-gemma-2-2b-it",
    "microsoft-Phi-3.5-mini-instruct", "HuggingFaceTB-SmolLM3-3B",
)  # fmt: skip
CLOSED = ReasoningState.CLOSED
CUT = '{"city": "Par'
SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "unit": {"enum": ["C", "F"]},
    },
    "required": ["city", "days", "unit"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
ASKED = {"role": "user", "content": "The weather?"}


def template(name: str) -> ChatTemplate:
    file = assets.llama_cpp() / "models" / "templates" / f"{name}.jinja"
    return ChatTemplate(file, {"default": file.read_text()}, {"bos_token": "", "eos_token": ""})


def called(arguments: Any) -> list[dict[str, Any]]:
    """A conversation with a call and its result."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "abcdefghi", "type": "function", "function": function}
    return [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "name": "get_weather", "content": "SUNNY"},
    ]


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(assets.smollm2(), threads=1)


def asking(messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = ()) -> ChatRequest:
    """A conversation with tools."""
    return ChatRequest(messages, tools=ToolChoice.of_tools(tools))


@pytest.mark.parametrize("name", FORMS)
def test_a_template_shows_its_form(name: str) -> None:
    assert format_of(template(name)) is FORMS[name].FORMAT
    assert told(template(name), [ASKED], [TOOL]) == ([ASKED], [TOOL])


@pytest.mark.parametrize("name", OWN)
def test_a_template_has_a_form_of_its_own(name: str) -> None:
    assert format_of(template(name)) not in (hermes.FORMAT, llama3.FORMAT, qwen3_coder.FORMAT)
    assert told(template(name), [ASKED], [TOOL]) == ([ASKED], [TOOL])


@pytest.mark.parametrize("name", NO_FORM)
def test_tools_without_a_form_are_told(llm: LLM, name: str) -> None:
    """In the system prompt, or where a template takes none, in the first message; calls and results
    that come back are in the prompt as well."""
    llm.renderer.template = template(name)
    assert format_of(llm.template) is hermes.FORMAT
    prompt = render_prompt(llm, asking(called({"city": "Oslo"}), [TOOL]))
    for text in ('"get_weather"', "<tools>", '{"city": "Oslo"}', "<tool_response>\nSUNNY"):
        assert text in prompt
    assert "SUNNY" in render_prompt(llm, asking(called({"city": "Oslo"})))


def test_of_python_as_well(llm: LLM) -> None:
    """A template without a place for tools drops none, and one with a place is left alone."""
    llm.renderer.template = template("microsoft-Phi-3.5-mini-instruct")
    assert "get_weather" in llm.chat_prompt([ASKED], tools=[TOOL])
    llm.renderer.template = template("GLM-4.6")
    assert "<tool_response>" not in llm.chat_prompt([ASKED], tools=[TOOL])


@pytest.mark.parametrize("name", [*FORMS, *OWN, *NO_FORM])
def test_a_call_that_was_cut_comes_back(llm: LLM, name: str) -> None:
    llm.renderer.template = template(name)
    prompt = render_prompt(llm, asking(called(CUT), [TOOL]))
    assert "Par" in prompt
    assert "SUNNY" in prompt


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder", *NO_FORM[:1]])
@pytest.mark.parametrize("strict", [None, True])
def test_a_forced_call_keeps_to_its_schema(llm: LLM, name: str, strict: bool | None) -> None:
    """Also without strict, and in XML, whose arguments stand one by one."""
    llm.renderer.template = template(name)
    function = {**TOOL["function"], "strict": strict}
    tools = parse_tools([{"type": "function", "function": function}], "required", False)
    answers = AnswerFormat(llm.template, tools, CLOSED)
    constraint = answers.constraint(llm.constraints, None)
    prompt = render_prompt(llm, ChatRequest([ASKED], tools=tools))
    judge = jsonschema_rs.validator_for(SCHEMA)
    for seed in range(3):
        done = llm.generate(
            prompt, constraint=constraint, seed=seed, temperature=1.0, max_tokens=200
        )
        (call,) = answers.parser().message(done.text)["tool_calls"]
        assert done.finish_reason == "length" or judge.is_valid(
            json.loads(call["function"]["arguments"])
        )


@pytest.mark.parametrize("name", ["Qwen-Qwen2.5-7B-Instruct", "Qwen3-Coder"])
def test_a_call_or_an_answer_of_the_schema(llm: LLM, name: str) -> None:
    llm.renderer.template = template(name)
    tools = parse_tools([TOOL], "auto", None)
    answer = llm.constraints.json_schema(SCHEMA)
    constraint = AnswerFormat(llm.template, tools, CLOSED).constraint(llm.constraints, answer)
    assert constraint is not None
    body = '{"city": "x", "days": 1, "unit": "C"}'
    call_format = format_of(llm.template)
    call = call_format.tool_call("get_weather", SCHEMA, True)
    if call.tagged:
        members, pairs = call.tagged, {"city": "x", "days": "1", "unit": "C"}.items()
        body = "".join(members.opens.replace("{}", k) + v + members.closes for k, v in pairs)
    cases = {
        call.begin + body + call.end: True,
        '{"city": "x", "days": 1, "unit": "C"}': True,
        "Hello": False,
        '{"city": "x", "days": 0}': False,
    }
    for text, valid in cases.items():
        ids = llm.tokenizer.encode(text, add_special=False)
        assert (constraint.matcher().valid(ids) == len(ids)) is valid, text


def test_named_templates_of_a_folder(tmp_path: Path) -> None:
    """Templates of tool_use are asked, where there are any."""
    file = assets.llama_cpp() / "models" / "templates" / "Qwen-Qwen2.5-7B-Instruct.jinja"
    plain = "{% for m in messages %}{{ m.content }}{% endfor %}"
    named = {"default": plain, "tool_use": file.read_text()}
    assert format_of(ChatTemplate(tmp_path, named, {})) is hermes.FORMAT
    assert ChatTemplate(tmp_path, named, {}).takes_tools
