"""Formats of calls that are derived from templates, and answers that consist of messages."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from random_tools import FORMS, arguments, closing_tokens, template, walked
from tool_calls import answer_format, byte_tokenizer, constrained, parsed, tool

from sterna import LLM
from sterna.engine.decoding.constraints import Constraints
from sterna.llm.messages_parser import MessagesParser
from sterna.llm.tool_call_formats import for_template, format_of, harmony
from sterna.llm.tool_call_formats.layout import LayoutFormat

HARMONY = (
    "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary<|message|>"
    "I look.<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json"
    '<|message|>{"a": [1]}'
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


@pytest.mark.parametrize("form", FORMS)
def test_random_tools(llm: LLM, form: str) -> None:
    """Every text that a tool's grammar allows is a call of it; tests/long has 500 for each form."""
    source, valid, closing = template(form), 0, closing_tokens(llm)
    assert isinstance(format_of(source), LayoutFormat) or form in ("JSON", "tags")
    for seed in range(8):
        rng = random.Random(seed)
        schema = arguments(rng)
        made = constrained(
            llm.constraints, format_of(source), {"f": schema}, required=True, several=False
        )
        text = walked(llm, made, rng, closing)
        if text is None:
            continue
        ((name, found),), content = parsed(source, text, {"f": schema})
        assert (name, content) == ("f", "")
        assert jsonschema_rs.validator_for(schema).is_valid(found), (seed, schema, text)
        valid += 1
    assert valid >= 4


@pytest.mark.parametrize("step", [0, 1, 5])
def test_messages_of_harmony(step: int) -> None:
    """Reasoning, a preamble and a call, then the final text; from pieces of any length."""
    schemas: dict[str, Any] = {"f": {}}
    for text, wanted in (
        (HARMONY, ("Hm.", "I look.", [("f", {"a": [1]})])),
        (HARMONY.replace("functions.f ", "functions.f").replace("commentary to", "analysis to"),
         ("Hm.", "I look.", [("f", {"a": [1]})])),
        (' to=functions.f<|channel|>commentary json<|message|>{}', ("", "", [("f", {})])),
        ("<|channel|>final<|message|>Yes <b>", ("", "Yes <b>", [])),
        ("<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>final<|message|>B",
         ("A.", "B", [])),
        ("plain", ("", "plain", [])),
        ("<|channel|>analysis<|message|>cut", ("cut", "", [])),
    ):  # fmt: skip
        parser = MessagesParser(harmony.FORMAT, True, True, schemas)
        pieces = [text[i : i + step] for i in range(0, len(text), step)] if step else [text]
        deltas = [d for piece in pieces for d in parser.feed(piece)] + parser.end()
        kinds = {
            kind: "".join(d.text for d in deltas if d.kind == kind)
            for kind in ("reasoning_content", "content", "tool_calls")
        }
        names = [d.name for d in deltas if d.id]
        calls = [(n, json.loads(kinds["tool_calls"])) for n in names]
        assert (kinds["reasoning_content"], kinds["content"], calls) == wanted, text


MARKS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>")


def test_constraints_of_messages(tmp_path: Path) -> None:
    """Reasoning comes first, then a call, or what an answer's constraint describes."""
    tokenizer = byte_tokenizer(tmp_path, MARKS, "<|call|>")
    make = Constraints(tokenizer, tokenizer.vocab_size)
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    answer = make.json_schema(schema)
    reasoning = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": 1}'
    final = "<|channel|>final<|message|>"
    free = constrained(make, harmony.FORMAT, {"f": schema})
    required = constrained(make, harmony.FORMAT, {"f": schema}, required=True)
    either = constrained(make, harmony.FORMAT, {"f": schema}, answer=answer)
    alone = constrained(make, harmony.FORMAT, {}, answer=answer)
    for constraint, text, valid in (
        (free, reasoning + call, True), (free, call, True), (free, f"{final}Hello", True),
        (free, reasoning + final + "Hello", True), (free, "Hello", False),
        (required, reasoning + call, True), (required, final + "Hello", False),
        (either, reasoning + final + '{"a": 1}', True), (either, call, True),
        (either, final + "Hello", False), (alone, reasoning + final + '{"a": 2}', True),
        (alone, call, False),
    ):  # fmt: skip
        ids = tokenizer.encode(text, add_special=False)
        assert (constraint.matcher().valid(ids) == len(ids)) is valid, text


def test_ids_that_a_model_writes() -> None:
    calls = "[TOOL_CALLS]f[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]g[CALL_ID]xyz123xyz[ARGS]{}"
    message = answer_format(template("named"), {"f": {}, "g": {}}).parser().message(calls)
    assert [call["id"] for call in message["tool_calls"]] == ["abc123def", "xyz123xyz"]


def test_values_that_a_template_would_print_as_python_does() -> None:
    """They are JSON where the model reads them, and texts stay texts."""
    source = template("tags")
    source._sources["default"] = source.source.replace("v if v is string else v | tojson", "v")
    given = {"a": "x", "b": True, "c": [None]}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": given}}
    said = [
        {"role": "user", "content": "Q"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
    ]
    tools = [tool("f", {"type": "object", "properties": {}})]
    messages, shown = for_template(source, said, tools)
    text = source.render(messages, False, tools=shown)
    assert "\ntrue\n" in text
    assert "\n[null]\n" in text


def test_text_that_only_looks_like_a_call() -> None:
    for form, text in (("named", "[TOOL_CALLS] of no tool"), ("typed", "<calls> are <b>")):
        for step in (0, 1):
            assert parsed(template(form), text, {}, step) == ([], text)


def test_a_call_that_is_cut() -> None:
    """It has what was certain, and is not complete."""
    source = template("typed")
    parser = answer_format(source, {"f": {}}).parser()
    parser.feed('<calls><call to="f"><arg name="a" string="true">x</arg><arg name="b"')
    parser.end()
    assert not parser.has_tool_calls


def test_numbers_beyond_floats() -> None:
    """JSON has no infinity, so they are the largest there is."""
    for form, text in (
        ("tags", "<tool_call>\n<function=f>\n<parameter=a>\n1e999\n</parameter>\n</function>\n"
         "</tool_call>"),
        ("Python", "<|tool_call_start|>[f(a=1e999)]<|tool_call_end|>"),
        ("Gemma", "<|tool_call>call:f{a:1e999}<tool_call|>"),
    ):  # fmt: skip
        assert parsed(template(form), text, {"f": {}}) == (
            [("f", {"a": 1.7976931348623157e308})],
            "",
        )
