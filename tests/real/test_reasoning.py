"""Constraints behind reasoning, with the templates that models are published with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import assets
import pytest

from sterna import LLM
from sterna.chat import ChatTemplate
from sterna.chat.reasoning import ReasoningState, with_switches
from sterna.errors import RequestError

#: Templates that open reasoning for the answer; that leave it the choice; that know none.
OPENED = (
    "Qwen3.5-4B", "llama-cpp-deepseek-r1", "deepseek-ai-DeepSeek-R1-Distill-Llama-8B",
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "MiniMax-M2",
)  # fmt: skip
FREE = ("Qwen-Qwen3-0.6B", "HuggingFaceTB-SmolLM3-3B")
#: Those that have it off until a variable turns it on.
SWITCHED = (
    "google-gemma-4-31B-it", "deepseek-ai-DeepSeek-V3.1", "deepseek-ai-DeepSeek-V4", "Reka-Edge",
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "poolside-Laguna-XS-2.1",
    "openbmb-MiniCPM5-1B",
)  # fmt: skip
NONE = ("Qwen-Qwen2.5-7B-Instruct", "meta-llama-Llama-3.1-8B-Instruct", "google-gemma-2-2b-it")
SAID = [{"role": "user", "content": "A number, as JSON"}]
SCHEMA = {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["a"], "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(assets.smollm2(), threads=1)


def template(name: str) -> ChatTemplate:
    file = assets.llama_cpp() / "models" / "templates" / f"{name}.jinja"
    tokens = {"bos_token": "", "eos_token": "<|im_end|>"}
    return ChatTemplate(file, {"default": file.read_text()}, tokens)


def chat(llm: LLM, name: str, **options: Any) -> Any:
    llm.renderer.template = template(name)
    constraint = llm.constraints.json_schema(SCHEMA)
    return llm.chat(SAID, constraint=constraint, max_tokens=60, temperature=0, **options)


@pytest.mark.parametrize("name", OPENED)
def test_reasoning_that_a_template_opens_come_before_the_schema(llm: LLM, name: str) -> None:
    """And leave room for it; without reasoning, where that is asked for, in any family's words."""
    done = chat(llm, name)
    assert done.reasoning
    assert set(json.loads(done.content)) == {"a"}
    for said in ({"enable_thinking": False}, {"reasoning_effort": "none"}):
        done = chat(llm, name, template_options=said)
        assert set(json.loads(done.text)) == {"a"}


@pytest.mark.parametrize("name", SWITCHED)
def test_an_effort_turns_reasoning_on(name: str) -> None:
    """Also where a template has it off by default; its own switch counts more."""
    made = template(name)
    on, off, neither = (
        made.render(SAID, variables=switch)
        for switch in ({"enable_thinking": True, "thinking": True}, {"enable_thinking": False}, {})
    )
    assert on != neither
    assert made.render(SAID, variables={"reasoning_effort": "high"}) == on
    assert made.render(SAID, variables=with_switches({}, True)) == on
    assert made.render(SAID, variables={"reasoning_effort": "none"}) in (off, neither)
    both = {"reasoning_effort": "high", "enable_thinking": False}
    assert made.render(SAID, variables=both) == off


def test_no_effort_in_a_template_that_refuses_the_word() -> None:
    """Hunyuan 3 calls it no_think, and refuses all that it does not know."""
    made = template("tencent-Hy3")
    silent = made.render(SAID, variables={"reasoning_effort": "no_think"})
    assert made.render(SAID, variables={"reasoning_effort": "none"}) == silent
    with pytest.raises(RequestError, match="no_think"):
        made.render(SAID, variables={"reasoning_effort": "medium"})


@pytest.mark.parametrize("name", FREE)
def test_reasoning_that_a_model_opens(llm: LLM, name: str) -> None:
    llm.renderer.template = template(name)
    think = llm.tokenizer.encode("<think>", add_special=False)[0]
    assert llm.template.reasoning_state(llm.chat_prompt(SAID)) is ReasoningState.FREE
    constraint = llm.constraints.json_schema(SCHEMA).after_reasoning(opened=False)
    for start in ("<think>\nWell", "{"):
        matcher = constraint.matcher()
        assert matcher.valid(ids := llm.tokenizer.encode(start, add_special=False)) == len(ids)
    done = chat(llm, name, logit_bias={think: 100.0}, template_options={"enable_thinking": False})
    assert set(json.loads(done.text)) == {"a"}


@pytest.mark.parametrize("name", NONE)
def test_a_template_without_reasoning(llm: LLM, name: str) -> None:
    done = chat(llm, name)
    assert set(json.loads(done.text)) == {"a"}
    assert (done.content, done.reasoning) == (done.text, "")


def test_an_answer_that_goes_on_within_reasoning(llm: LLM) -> None:
    name = "Qwen-Qwen3-0.6B"
    llm.renderer.template, constraint = template(name), llm.constraints.json_schema(SCHEMA)
    for begun, reasons in (("<think>\nA digit", True), ("Here: ", False)):
        messages = [*SAID, {"role": "assistant", "content": begun}]
        done = llm.chat(messages, continue_final_message=True, constraint=constraint, max_tokens=60)
        assert bool(done.reasoning) == reasons
        assert set(json.loads(done.content)) == {"a"}


def test_marks_that_are_tokens(tmp_path: Path) -> None:
    """As Qwen3's </think> and </tool_call> are: no text spells them, in reasoning and in calls."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from sterna.engine.decoding.constraints import Constraints
    from sterna.engine.decoding.grammars import ToolCall
    from sterna.tokenizer import Tokenizer as Ours

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken("<|im_end|>", special=True)])
    marks = ["<think>", "</think>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]"]
    made.add_tokens([AddedToken(mark, special=False) for mark in marks])
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "<|im_end|>"}')
    tokenizer = Ours(tmp_path)
    make = Constraints(tokenizer, tokenizer.vocab_size)

    def valid(constraint: Any, text: str) -> bool:
        ids = tokenizer.encode(text, add_special=False)
        return bool(constraint.matcher().valid(ids) == len(ids))

    number = make.regex("[0-9]")
    assert valid(number.after_reasoning(opened=True), "why\n</think>\n\n7")
    assert valid(number.after_reasoning(opened=False), "<think>why</think>7")
    assert not valid(number.after_reasoning(opened=True), "why</think>x")
    begin = '<tool_call>\n{"name": "f", "arguments": '
    call = ToolCall(begin, {"type": "object"}, "}\n</tool_call>")
    for required in (False, True):
        calls = make.tools([call], "<tool_call>", required=required)
        assert valid(calls, begin + "{}}\n</tool_call>")
        assert valid(calls.after_reasoning(opened=False), f"<think>x</think>\n\n{begin}{{}}")
    call = ToolCall('[TOOL_CALLS][{"name": "f", "arguments": ', {"type": "object"}, "}]")
    assert valid(make.tools([call], "[TOOL_CALLS]"), '[TOOL_CALLS][{"name": "f", "arguments": {}}]')
