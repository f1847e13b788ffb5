"""`LLM.chat` and `chat_stream`: many conversations, texts, parts of pieces, forms of answers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from helpers import failure
from pydantic import BaseModel

import sterna
from sterna import LLM, AsyncLLM, Conversation, Piece
from sterna.errors import RequestError

SAID = [{"role": "user", "content": "The weather?"}]
OTHER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "And now?"}]
OPTIONS: dict[str, Any] = {"max_tokens": 60, "temperature": 1.0, "seed": 3}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [{"type": "function", "function": {"name": "far", "parameters": CITY}}]


class City(BaseModel):
    """A pydantic class with the schema above."""

    city: str


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1, chat_template="chatml")


def test_a_list_of_conversations(llm: LLM) -> None:
    alone = [llm.chat(one, **OPTIONS).tokens for one in (SAID, OTHER)]
    assert [done.tokens for done in llm.chat([SAID, OTHER], **OPTIONS)] == alone
    (one,) = llm.chat([SAID], **OPTIONS)
    assert one.tokens == alone[0]


def test_a_text_is_a_message_of_the_user(llm: LLM) -> None:
    text = SAID[0]["content"]
    assert llm.chat(text, **OPTIONS).tokens == llm.chat(SAID, **OPTIONS).tokens
    assert llm.chat_prompt(text) == llm.chat_prompt(SAID)


def joined(pieces: list[Piece]) -> dict[str, Any]:
    """What the pieces of an answer add up to."""
    calls: list[dict[str, str]] = []
    for chunk in (chunk for piece in pieces for chunk in piece.tool_calls):
        if "id" in chunk:
            calls.append({"name": chunk["function"]["name"], "arguments": ""})
        calls[chunk["index"]]["arguments"] += chunk["function"]["arguments"]
    return {
        "text": "".join(piece.text for piece in pieces),
        "content": "".join(piece.content for piece in pieces),
        "reasoning": "".join(piece.reasoning for piece in pieces),
        "calls": calls,
    }


def whole(done: sterna.Completion) -> dict[str, Any]:
    """The same of a completion."""
    calls = [call["function"] for call in done.tool_calls]
    return {
        "text": done.text, "content": done.content, "reasoning": done.reasoning, "calls": calls,
    }  # fmt: skip


def test_the_parts_of_a_stream(llm: LLM) -> None:
    """A stream, a `Conversation` and an event loop give the parts that the answer has."""
    cases: list[dict[str, Any]] = [
        {}, {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False},
    ]  # fmt: skip
    for asked in cases:
        options = {**OPTIONS, **asked}
        done = llm.chat(SAID, **options)
        stream = llm.chat_stream(SAID, **options)
        assert joined(list(stream)) == whole(done) == whole(stream.completion)
        with Conversation(llm) as talk:
            assert joined(list(talk.stream(SAID[0]["content"], **options))) == whole(done)

        async def read(options: dict[str, Any] = options) -> list[Piece]:
            async with AsyncLLM(llm) as engine:
                return [piece async for piece in engine.submit_chat(SAID, **options)]

        assert joined(asyncio.run(read())) == whole(done)


def test_reasoning_in_pieces(llm: LLM) -> None:
    """Reasoning is no content, however its mark is cut."""
    begun = [*SAID, {"role": "assistant", "content": "<think>\nSo"}]
    options = {**OPTIONS, "continue_final_message": True}
    pieces = list(llm.chat_stream(begun, **options, stop=["e"]))
    assert joined(pieces) == whole(llm.chat(begun, **options, stop=["e"]))


CHOSEN = r'\{\s*"city"\s*:\s*"(Paris|Rome)"\s*\}'
NAMED = r'\{\s*"city"\s*:\s*"'


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"constraint": CITY}, CHOSEN),
        ({"constraint": City}, NAMED),
        ({"constraint": re.compile("(ab|BA)+c", re.IGNORECASE)}, "(?i:(ab|BA)+c)"),
        ({"response_format": City}, NAMED),
        ({"response_format": {"type": "json_object"}}, r"\{"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": CITY}}}, CHOSEN),
    ],
)
def test_forms_of_an_answer(llm: LLM, form: dict[str, Any], pattern: str) -> None:
    options = {**OPTIONS, **form, "max_tokens": 40}
    first, second = llm.chat([SAID, OTHER], **options)
    for done in (first, second):
        assert re.match(pattern, done.text, re.DOTALL), done.text
    if "constraint" in form:
        assert re.match(pattern, llm.generate("x", **options).text, re.DOTALL)
    llm.requests.check_options(options, chat=True)


def test_other_forms_are_refused(llm: LLM) -> None:
    for form, word in (
        ({"constraint": "a+"}, "constraint"), ({"constraint": int}, "constraint"),
        ({"constraint": re.compile(b"a")}, "bytes"), ({"response_format": 5}, "response_format"),
        ({"response_format": {"type": "xml"}}, "json_schema"),
        ({"response_format": {"type": "json_schema"}}, "schema"),
        ({"response_format": {"type": "json_object"}, "constraint": CITY}, "combined"),
    ):  # fmt: skip
        failure(lambda form=form: llm.chat(SAID, **form), RequestError, word)


def test_tools_are_named_in_errors(llm: LLM) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "nothing"}}}
    tools: Any = [{"type": "function", "function": {"name": "x", "parameters": wrong, "strict": 1}}]
    failure(lambda: llm.chat(SAID, tools=tools), RequestError, "tools: ")


def test_names(llm: LLM) -> None:
    assert dir(sterna) == sorted(sterna.__all__)
    assert repr(llm) == f"LLM('nano', format='i2', head='exact', threads=1, context={llm.context})"
    json.dumps(llm.info())
