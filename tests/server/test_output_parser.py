"""Splitting an answer into reasoning, content and tool calls, wherever the stream is cut."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sterna.llm.output_parser import OutputParser
from sterna.llm.tool_call_formats import hermes, llama3, mistral, qwen3_coder
from sterna.llm.tool_call_formats.base import ToolCallFormat
from sterna.outputs import Piece, TokenLogprob
from sterna.server.logprob_format import ContentLogprobs

CALL = '{"name": "f", "arguments": {"a": [1, "}"], "b": "\\u00e9"}}'
HERMES = f"<tool_call>\n{CALL}\n</tool_call>"
XML = (
    "<tool_call>\n<function=f>\n<parameter=a>\nx\ny\n</parameter>\n<parameter=b>\n2\n</parameter>\n"
)
XML += "</function>\n</tool_call>"
#: A format, an answer, and the expected reasoning, content and calls.
CASES: list[tuple[ToolCallFormat | None, str, str | None, str | None, list[tuple[str, Any]]]] = [
    (None, "Hello <b>", None, "Hello <b>", []),
    (None, "", None, "", []),
    (None, "<think>\nwhy\n</think>\n\nso", "why\n", "so", []),
    (None, "  <think>x", "x", "", []),
    (None, "a <think>b</think>", None, "a <think>b</think>", []),
    (None, "<thin", None, "<thin", []),
    (None, HERMES, None, HERMES, []),
    (hermes.FORMAT, HERMES, None, None, [("f", {"a": [1, "}"], "b": "é"})]),
    (hermes.FORMAT, f"I call.\n\n{HERMES}\n{HERMES}", None, "I call.",
     [("f", {"a": [1, "}"], "b": "é"})] * 2),
    (hermes.FORMAT, f"<think>t</think>{HERMES}\nafter", "t", "after",
     [("f", {"a": [1, "}"], "b": "é"})]),
    (hermes.FORMAT, "1 <tool 2 <", None, "1 <tool 2 <", []),
    (hermes.FORMAT, "<tool_call>\nnone\n</tool_call>", None, "<tool_call>\nnone\n</tool_call>", []),
    (hermes.FORMAT, '<tool_call>{"name": "f", "argum', None, '<tool_call>{"name": "f", "argum', []),
    (hermes.FORMAT, '<tool_call>[{"arguments": {"a": 1}, "name": "f"}, ' + CALL + "}]</tool_call>!",
     None, "!", [("f", {"a": 1}), ("f", {"a": [1, "}"], "b": "é"})]),
    (hermes.FORMAT, '<tool_call>{"name": "f", "arguments": "{}"}</tool_call>', None, None,
     [("f", {})]),
    (hermes.FORMAT, '<tool_call>{"a": 1} x</tool_call> y', None,
     '<tool_call>{"a": 1} x</tool_call> y', []),
    (mistral.FORMAT, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "}"}]', None, None,
     [("f", {"a": 1})]),
    (mistral.FORMAT, "[TOOL_CALLS] no", None, "[TOOL_CALLS] no", []),
    (llama3.FORMAT, '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}\nso',
     None, "so", [("f", {"a": 1}), ("g", {})]),
    (mistral.FORMAT, f"[{CALL}, {CALL}]", None, None, [("f", {"a": [1, "}"], "b": "é"})] * 2),
    (mistral.FORMAT, f"[TOOL_CALLS][{CALL}]", None, None, [("f", {"a": [1, "}"], "b": "é"})]),
    (llama3.FORMAT, '{"name": "f", "parameters": {"a": 1}}', None, None, [("f", {"a": 1})]),
    (llama3.FORMAT, "plain {text}  ", None, "plain {text}  ", []),
    (qwen3_coder.FORMAT, XML, None, None, [("f", {"a": "x\ny", "b": 2})]),
    (qwen3_coder.FORMAT, "<tool_call><function=f></function>\n<function=g>\n</tool_call>z", None,
     "z", [("f", {}), ("g", {})]),
    (qwen3_coder.FORMAT, "<tool_call>\n<function f>", None, "<tool_call>\n<function f>", []),
]  # fmt: skip


@pytest.mark.parametrize(("call_format", "text", "reasoning", "content", "calls"), CASES)
@settings(max_examples=25)  # of each case, whose cuts are much alike
@given(data=st.data())
def test_cuts_change_nothing(
    call_format: ToolCallFormat | None,
    text: str,
    reasoning: str | None,
    content: str | None,
    calls: list[tuple[str, Any]],
    data: st.DataObject,
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parser, whole = OutputParser(call_format), OutputParser(call_format).message(text)
    found: dict[str, str] = {}
    arguments: list[str] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        for delta in (*parser.feed(text[begin:end]), *(parser.end() if end == len(text) else ())):
            if delta.kind == "tool_calls":
                arguments += [""] if delta.id else []
                arguments[delta.index] += delta.text
            else:
                found[delta.kind] = found.get(delta.kind, "") + delta.text
    assert whole.get("reasoning_content") == reasoning == found.get("reasoning_content")
    assert whole["content"] == content
    assert found.get("content", "") == (content or "")
    made = [c["function"] for c in whole.get("tool_calls", ())]
    assert [(f["name"], json.loads(f["arguments"])) for f in made] == calls
    assert arguments == [f["arguments"] for f in made]


@pytest.mark.parametrize("size", [1, 2, 5, 9])
@pytest.mark.parametrize(("call_format", "text", "content"), [(c[0], c[1], c[3]) for c in CASES])
def test_logprobs_are_those_of_the_content(
    call_format: ToolCallFormat | None, text: str, content: str | None, size: int
) -> None:
    """Of the tokens that have a part in it: none of reasoning, calls and markers."""
    texts = [text[i : i + size] for i in range(0, len(text), size)]
    tokenizer: Any = SimpleNamespace(token_bytes=lambda id: texts[id].encode())
    parser, logprobs = OutputParser(call_format), ContentLogprobs(tokenizer, 0)
    taken = []
    for i, part in enumerate(texts):
        piece = Piece(part, i, TokenLogprob(i, -1.0, ()))
        taken += logprobs.take(piece, parser.feed(part), parser.unread)
    taken += logprobs.take(None, parser.end(), parser.unread)
    assert taken == logprobs.entries
    begin = text.rindex(content) if content else 0
    of_content = range(begin, begin + len(content or ""))
    expected = dict.fromkeys(at // size for at in of_content)
    assert [entry["token"] for entry in taken] == [texts[i] for i in expected]


def test_arguments_come_in_pieces() -> None:
    """As soon as they are there; an answer that is cut within them has a call that is not whole."""
    cut = HERMES[: HERMES.index("u00e9")]
    for call_format, text in (
        (hermes.FORMAT, HERMES),
        (hermes.FORMAT, cut),
        (qwen3_coder.FORMAT, XML),
        (qwen3_coder.FORMAT, XML[:-30]),
    ):
        parser, seen = OutputParser(call_format), []
        for c in text:
            seen += [d.text for d in parser.feed(c) if d.kind == "tool_calls" and not d.id]
        before = "".join(seen)
        seen += [d.text for d in parser.end() if d.kind == "tool_calls"]
        assert before.startswith('{"a": ')
        assert "".join(seen) == before
        assert len(seen) >= 2
        assert parser.has_tool_calls == (text in (HERMES, XML))


def test_reasoning_that_the_template_opened() -> None:
    message = OutputParser(opened=True).message("as so</think>yes")
    assert message == {"role": "assistant", "content": "yes", "reasoning_content": "as so"}


def test_one_call_alone() -> None:
    """Text after it is left out, even if it is no call."""
    for rest in (HERMES, "text", HERMES[:-20]):
        message = OutputParser(hermes.FORMAT, parallel=False).message(HERMES + rest)
        assert message["content"] is None
        assert len(message["tool_calls"]) == 1


def test_formats_parse_what_they_allow() -> None:
    """A call that the engine lets an answer write is parsed as this call."""
    for call_format in (hermes.FORMAT, llama3.FORMAT, mistral.FORMAT, qwen3_coder.FORMAT):
        call, body = call_format.tool_call('a"b', {}, True), '{"x": 1}'
        assert call.begin.startswith(call_format.trigger)
        if call.tagged:
            body = call.tagged.opens.replace("{}", "x") + "1" + call.tagged.closes
        (found,) = OutputParser(call_format).message(call.begin + body + call.end)["tool_calls"]
        assert found["function"] == {"name": 'a"b', "arguments": '{"x": 1}'}


def test_a_text_that_looks_like_a_number() -> None:
    """The schema decides the type of an argument in XML."""
    schemas = {"f": {"type": "object", "properties": {"b": {"type": "string"}}}}
    (found,) = OutputParser(qwen3_coder.FORMAT, schemas=schemas).message(XML)["tool_calls"]
    assert json.loads(found["function"]["arguments"]) == {"a": "x\ny", "b": "2"}


@pytest.mark.parametrize(
    ("text", "parallel", "reason", "expected"),
    [
        (HERMES, True, "stop", "tool_calls"),
        (HERMES, True, "length", "length"),  # another call or a text may have been to come
        (f"{HERMES}\n<tool_call>\n{{", True, "length", "length"),
        (f"{HERMES}\n<tool_call>\n{{", False, "length", "tool_calls"),  # the only one is whole
        (HERMES[:30], False, "length", "length"),
        (HERMES, True, "cancelled", "cancelled"),
        ("Hello", True, "stop", "stop"),
    ],
)
def test_finish_reasons(text: str, parallel: bool, reason: str, expected: str) -> None:
    """An answer that was cut says so, also behind calls that are whole."""
    parser = OutputParser(hermes.FORMAT, parallel)
    parser.message(text)
    assert parser.finish_reason(reason) == expected
