"""Custom tools: OpenAI's, whose input is a text, and tools in namespaces, as Codex sends them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from random_tools import FORMS, template
from server_process import ServerProcess, serving
from tool_calls import byte_tokenizer, rendered

import sterna
from sterna import LLM
from sterna.chat.reasoning import ReasoningState
from sterna.engine.decoding.constraints import Constraints
from sterna.llm.answer_format import AnswerFormat
from sterna.llm.tool_choice import ToolChoice
from sterna.outputs import Delta
from sterna.server.custom_tools import CustomCallParser
from sterna.server.tool_choice import parse_tools

#: A grammar of patches in lines, in the manner of Codex's.
PATCH = """start: begin line{1,2} end
begin: "*** Begin" LF
end: "*** End" LF?
line: ("+" | "-") /(.*)/ LF -> line
%import common.LF
"""
#: With rules that use themselves, which no single terminal can match.
NESTED = 'start: "(" start? ")"'
TEXT = "*** Begin\n+a \"b\" 'c' \\ <x>\n- é\t\n*** End"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
    "<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }} <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>{% endif %}'
)
USER = {"role": "user", "content": "patch the file"}
ASKED: dict[str, Any] = {"model": "tools", "temperature": 0}


def grammar(definition: str, syntax: str = "lark") -> dict[str, Any]:
    return {"type": "grammar", "syntax": syntax, "definition": definition}


def custom(form: dict[str, Any] | None) -> dict[str, Any]:
    """A tool of responses."""
    return {"type": "custom", "name": "edit", "description": "Edits.", "format": form}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("custom")
    shutil.copytree(Path(sterna.__file__).parent / "data" / "nano", folder / "tools")
    (folder / "tools" / "chat_template.jinja").write_text(TEMPLATE)
    with serving(folder, str(folder / "tools"), "--context", "4096") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def held(constraints: Constraints, made: AnswerFormat, text: str) -> bool:
    """Whether a text may be the whole answer."""
    constraint = made.constraint(constraints, None)
    assert constraint is not None
    matcher = constraint.matcher()
    tokens = constraints.tokenizer.encode(text, add_special=False)
    if matcher.valid(tokens) < len(tokens):
        return False
    matcher.follow(np.array(tokens, np.int32))
    ends = constraints.tokenizer.eos_ids
    (mask,) = matcher.masks([], ends)
    return matcher.ended or any(mask[end // 32] >> end % 32 & 1 for end in ends)


def check_form(constraints: Constraints, form: str, texts: dict[str, str]) -> None:
    """texts: an answer with the call of each input."""
    inputs = {TEXT: True, TEXT + "\n": True, TEXT[:-1]: False, "x": False, "": False}
    tools = parse_tools([custom(grammar(PATCH))], None, None, flat=True)
    made = AnswerFormat(template(form), tools, ReasoningState.CLOSED)
    for text, good in inputs.items():
        assert held(constraints, made, texts[text]) == good, (form, text)
        if good:
            parser = CustomCallParser(made.parser(), tools.texts)
            (call,) = parser.message(texts[text])["tool_calls"]
            assert call["custom"]["name"] == "edit"
            assert call["custom"]["input"].rstrip("\n") == text.rstrip("\n")


@pytest.mark.parametrize("form", [form for form in FORMS if form != "Gemma"])
def test_grammars_in_every_form(llm: LLM, form: str) -> None:
    """JSON and Python quote the text, tags do not: only inputs of the grammar are allowed."""
    tool = {"type": "function", "function": {"name": "edit", "parameters": {"type": "object"}}}
    inputs = (TEXT, TEXT + "\n", TEXT[:-1], "x", "")
    source = template(form)
    check_form(
        llm.constraints, form,
        {text: rendered(source, [("edit", {"input": text})], [tool]) for text in inputs},
    )  # fmt: skip


def test_grammars_behind_special_tokens(tmp_path: Path) -> None:
    """Gemma's texts stand between tokens of their own."""
    marks = ["<|tool_call>", "<tool_call|>", '<|"|>', "<eos>"]
    tokenizer = byte_tokenizer(tmp_path, marks, "<eos>")
    constraints = Constraints(tokenizer, tokenizer.vocab_size)
    call = '<|tool_call>call:edit{input:<|"|>%s<|"|>}<tool_call|>'
    texts = {text: call % text for text in (TEXT, TEXT + "\n", TEXT[:-1], "x", "")}
    check_form(constraints, "Gemma", texts)


def test_texts_that_could_hold_their_end(llm: LLM) -> None:
    """A text ends at the tag, though it could contain it."""
    for form in ("tags", "typed"):
        tools = parse_tools([custom(grammar("(?s).*", "regex"))], None, None, flat=True)
        made = AnswerFormat(template(form), tools, ReasoningState.CLOSED)
        said = rendered(template(form), [("edit", {"input": "a\nb"})], list(tools.shown))
        assert held(llm.constraints, made, said), form


def test_deltas_of_any_length() -> None:
    """Escapes cut anywhere, surrogates among them; other tools' calls stay as they are."""
    text = 'a"\\\n\t/é😀\ud83d.'
    arguments = json.dumps({"input": text})

    class Pieces:
        unread = 0

        def finish_reason(self, reason: str) -> str:
            return reason

        def feed(self, text: str) -> list[Delta]:
            return [Delta("tool_calls", text)]

        def end(self) -> list[Delta]:
            return []

        def message(self, text: str) -> dict[str, Any]:
            return {}

    for step in range(1, len(arguments) + 1):
        source = Pieces()
        parser = CustomCallParser(source, {"edit"})
        source.feed = lambda piece: [Delta("tool_calls", "", 0, "c1", "edit")]  # type: ignore[method-assign]
        deltas = parser.feed("")
        source.feed = Pieces().feed  # type: ignore[method-assign]
        for i in range(0, len(arguments), step):
            deltas += parser.feed(arguments[i : i + step])
        assert {delta.kind for delta in deltas} == {"custom_tool_calls"}
        assert (deltas[0].id, deltas[0].name) == ("c1", "edit")
        assert "".join(delta.text for delta in deltas) == text.replace("\ud83d", "\ufffd")
    source.feed = lambda piece: [Delta("tool_calls", "{", 1, "c2", "other")]  # type: ignore[method-assign]
    assert [delta.kind for delta in parser.feed("")] == ["tool_calls"]


def test_history_is_in_the_prompt(client: openai.OpenAI, server: ServerProcess) -> None:
    """The call and its output, as a function's would be."""
    call = {"type": "custom_tool_call", "call_id": "c1", "name": "edit", "input": "hello\n world"}
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "Updated a file"}
    items: Any = [USER, call, output]
    count = client.responses.input_tokens.count
    arguments = json.dumps({"input": call["input"]})
    plain: Any = [
        USER,
        {"type": "function_call", "call_id": "c1", "name": "edit", "arguments": arguments},
        {"type": "function_call_output", "call_id": "c1", "output": output["output"]},
    ]
    asked = count(input=items, model="tools").input_tokens
    assert asked == count(input=plain, model="tools").input_tokens
    assert asked > count(input=[USER], model="tools").input_tokens + 10  # type: ignore[list-item]
    answer = server.post("/v1/responses", model="tools", input=items, max_output_tokens=1)
    assert "x-sterna-warning" not in answer.headers
    tool: Any = custom(grammar(PATCH))
    shown = count(input=items, model="tools", tools=[tool]).input_tokens
    assert shown > asked + len(PATCH) // 4  # the grammar among it
    said = {
        "role": "assistant",
        "tool_calls": [{"id": "c1", "type": "custom",
                        "custom": {"name": "edit", "input": call["input"]}}],
    }  # fmt: skip
    result = {"role": "tool", "tool_call_id": "c1", "content": output["output"]}
    prompt = server.post("/apply-template", messages=[USER, said, result]).json()["prompt"]
    assert json.dumps(arguments)[1:-1] in prompt or '"input": "hello\\n world"' in prompt


@pytest.mark.parametrize("syntax", ["lark", "regex", "text", "nested"])
def test_answers(client: openai.OpenAI, syntax: str) -> None:
    """Whole and in a stream: the same call, whose input matches the grammar."""
    forms = {
        "lark": grammar('start: "*** Begin\\n" ("a".."c")+ "\\"\\n" END\nEND: "*** End"'),
        "regex": grammar(r'say "[abc/]{2}"\n', "regex"), "text": {"type": "text"},
        "nested": grammar(NESTED),
    }  # fmt: skip
    tool: Any = custom(forms[syntax])
    asked: Any = {**ASKED, "input": "x", "tools": [tool], "max_output_tokens": 60, "temperature": 1}
    asked |= {"tool_choice": {"type": "custom", "name": "edit"}, "parallel_tool_calls": False}
    (item,) = client.responses.create(**asked, extra_body={"seed": 5}).output
    assert item.type == "custom_tool_call"
    assert item.name == "edit"
    if syntax == "regex":
        assert item.input[:5] + item.input[-2:] == 'say ""\n'
    if syntax == "lark":
        assert item.input.startswith("*** Begin\n")
    *events, last = client.responses.create(**asked, extra_body={"seed": 5}, stream=True)
    pieces = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    (done,) = [e for e in events if e.type == "response.custom_tool_call_input.done"]
    (final,) = last.response.output
    assert "".join(pieces) == done.input == final.input == item.input
    assert done.item_id == final.id
    # the client sends the item back as it came
    again: Any = {
        **asked,
        "input": [
            USER,
            final.model_dump(),
            {"type": "custom_tool_call_output", "call_id": final.call_id, "output": "ok"},
        ],
    }
    assert client.responses.create(**again).output


def test_answers_of_chat(client: openai.OpenAI, server: ServerProcess) -> None:
    form = {"type": "grammar", "grammar": {"syntax": "regex", "definition": 'a"[bc]\n'}}
    function = {"name": "look", "parameters": {"type": "object", "properties": {}}}
    tools: Any = [{"type": "custom", "custom": {"name": "edit", "format": form}},
                  {"type": "function", "function": function}]  # fmt: skip
    choice: Any = {"type": "custom", "custom": {"name": "edit"}}
    asked: Any = {**ASKED, "messages": [USER], "tools": tools, "max_tokens": 99}
    done = client.chat.completions.create(**asked, tool_choice=choice, parallel_tool_calls=False)
    (call,) = done.choices[0].message.tool_calls or []
    assert call.type == "custom"
    assert call.custom.input in ('a"b\n', 'a"c\n')
    assert done.choices[0].finish_reason == "tool_calls"
    chunks = client.chat.completions.create(
        **asked, tool_choice=choice, stream=True, parallel_tool_calls=False
    )
    deltas: list[Any] = [
        call.model_dump() for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()
    ]
    assert deltas[0]["type"] == "custom"
    assert deltas[0]["custom"]["name"] == "edit"
    assert "".join(delta["custom"]["input"] for delta in deltas) == call.custom.input
    allowed = {"mode": "required", "tools": [choice]}
    some = client.chat.completions.create(
        **asked, tool_choice={"type": "allowed_tools", "allowed_tools": allowed}
    )
    assert {call.type for call in some.choices[0].message.tool_calls or ()} == {"custom"}
    asked["tool_choice"] = {"type": "function", "function": {"name": "look"}}
    (call,) = (
        client.chat.completions.create(**asked, parallel_tool_calls=False)
        .choices[0]
        .message.tool_calls
        or []
    )
    assert call.type == "function"


def test_namespaces(client: openai.OpenAI) -> None:
    """Their tools are shown and called by both names; items have them apart."""
    none = {"type": "object", "properties": {}, "additionalProperties": False}
    inner = {"type": "function", "name": "close", "strict": True, "parameters": none}
    space = {"type": "namespace", "name": "mcp__desk", "description": "A desk.",
             "tools": [inner, custom(None)]}  # fmt: skip
    asked: Any = {**ASKED, "tools": [space], "max_output_tokens": 90, "parallel_tool_calls": False}
    asked["tool_choice"] = {"type": "function", "name": "mcp__desk__close"}
    (item,) = client.responses.create(**asked, input="x").output
    assert (item.type, item.name, item.namespace) == ("function_call", "close", "mcp__desk")
    again: Any = [USER, item.model_dump(), {
        "type": "function_call_output", "call_id": item.call_id, "output": "ok"}]  # fmt: skip
    assert client.responses.create(**asked, input=again).output
    *events, last = client.responses.create(**asked, input="x", stream=True)
    (final,) = last.response.output
    assert (final.name, final.namespace) == ("close", "mcp__desk")
    assert "response.function_call_arguments.done" in {event.type for event in events}


def test_what_is_refused(server: ServerProcess) -> None:
    for tool, param in (
        (custom({"type": "xml"}), "tools[1].format"),
        (custom(grammar("", "lark")), "tools[1].format"),
        (custom(grammar("a", "gbnf")), "tools[1].format"),
        ({"type": "custom"}, "tools[1].name"),
        ({"type": "namespace", "name": "a", "tools": [{}]}, "tools[1].tools[0]"),
        ({"type": "namespace", "name": "a"}, "tools[1].tools"),
        (custom(grammar("start: (")), "tools"),
        (custom(grammar('start: "a" } start: "b"')), "tools"),
        (custom(grammar("start: ~/a/")), "tools"),
    ):
        tools = [{"type": "web_search"}, tool]
        answer = server.post("/v1/responses", model="tools", input="x", tools=tools)
        assert answer.status_code == 400, tool
        assert answer.json()["error"]["param"] == param, answer.text
    item = {"type": "custom_tool_call", "call_id": "c", "name": "edit", "input": 5}
    answer = server.post("/v1/responses", model="tools", input=[USER, item])
    assert answer.json()["error"]["param"] == "input[1].input"


def test_other_tools_are_as_before() -> None:
    tools = parse_tools([{"type": "function", "function": {"name": "f"}}], None, None)
    assert tools == ToolChoice.of_tools(tools.shown)
    assert not tools.texts
