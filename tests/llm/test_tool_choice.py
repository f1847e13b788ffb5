"""`tool_choice` of `LLM.chat`, in the words of the server, whose endpoints share the code."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from helpers import failure

from sterna import LLM, AsyncLLM, Conversation
from sterna.errors import RequestError
from sterna.llm.tool_choice import ToolChoice
from sterna.server.tool_choice import parse_tools

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("here", "far")
]
SAID = [{"role": "user", "content": "The weather?"}]
OPTIONS: dict[str, Any] = {"max_tokens": 120, "temperature": 1.0, "seed": 3}
FAR = {"type": "function", "function": {"name": "far"}}


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", threads=1, chat_template="chatml")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"here", "far"}),
        (FAR, {"far"}),
        ({"name": "far"}, {"far"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"name": "here"}]}, {"here"}),
    ],
)
def test_a_call_is_made(llm: LLM, choice: Any, names: set[str]) -> None:
    """Of one of these tools, by its schema, though no tool is strict."""
    for seed in range(4):
        options = {**OPTIONS, "seed": seed, "parallel_tool_calls": False}
        done = llm.chat(SAID, tools=TOOLS, tool_choice=choice, **options)
        (call,) = done.tool_calls
        assert call["function"]["name"] in names
        assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
        assert done.content is None or not done.content.strip()


def test_none_hides_the_tools(llm: LLM) -> None:
    hidden = llm.chat(SAID, tools=TOOLS, tool_choice="none", **OPTIONS)
    assert hidden.tokens == llm.chat(SAID, **OPTIONS).tokens
    assert hidden.stats.n_prompt < llm.chat(SAID, tools=TOOLS, **OPTIONS).stats.n_prompt


def test_auto_is_the_default(llm: LLM) -> None:
    plain = llm.chat(SAID, tools=TOOLS, **OPTIONS)
    assert plain.tokens == llm.chat(SAID, tools=TOOLS, tool_choice="auto", **OPTIONS).tokens
    assert plain.tokens == llm.chat(SAID, tools=TOOLS, tool_choice=None, **OPTIONS).tokens


def test_wherever_a_conversation_is_answered(llm: LLM) -> None:
    """A stream, a `Conversation` and an event loop make the call that `chat` makes."""
    options = {**OPTIONS, "tools": TOOLS, "tool_choice": FAR, "parallel_tool_calls": False}
    tokens = llm.chat(SAID, **options).tokens
    stream = llm.chat_stream(SAID, **options)
    assert len(list(stream)) > 0
    assert stream.completion.tokens == tokens
    with Conversation(llm) as chat:
        assert chat.ask(SAID[0]["content"], **options).tokens == tokens

    async def asked() -> list[int]:
        async with AsyncLLM(llm) as engine:
            (done,) = await engine.submit_chat(SAID, **options).result()
            (call,) = done.tool_calls
            assert call["function"]["name"] == "far"
            return done.tokens

    assert asyncio.run(asked()) == tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tool_choice": "required"}, "needs tools"),
        ({"tool_choice": "required", "tools": [{"type": "x"}]}, "needs tools"),
        ({"tool_choice": "any", "tools": TOOLS}, "none, auto, required or a tool, but got 'any'"),
        ({"tool_choice": 3, "tools": TOOLS}, "none, auto, required or a tool, but got 3"),
        ({"tool_choice": {"name": "no"}, "tools": TOOLS}, "must name tools of far, here"),
        ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "must name a function"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": TOOLS}, "a mode of auto or required"),
        ({"parallel_tool_calls": 1, "tools": TOOLS}, "parallel_tool_calls: must be True or False"),
        ({"tool_choice": "required", "tools": "far"}, "tools: must be a list of JSON objects"),
    ],
)
def test_wrong_choices(llm: LLM, options: dict[str, Any], words: str) -> None:
    failure(lambda: llm.chat(SAID, **options), RequestError, words)
    check: Callable[[], None] = lambda: llm.requests.check_options(options, chat=True)  # noqa: E731
    failure(check, RequestError, words)


def test_the_server_chooses_alike() -> None:
    """Its checks of OpenAI's form come first."""
    for choice in (None, "auto", "none", "required", FAR):
        for parallel in (None, True, False):
            assert parse_tools(TOOLS, choice, parallel) == ToolChoice.of_tools(
                TOOLS, choice, parallel
            )
    assert not parse_tools(TOOLS, "none", None).shown
    assert not parse_tools(TOOLS, "auto", None).required
    assert parse_tools(TOOLS, "required", False).parallel is False
    named = parse_tools(TOOLS, FAR, None)
    assert (named.names, named.required) == ({"far"}, True)
    allowed = {"mode": "auto", "tools": [{"type": "function", "name": "here"}]}
    some = parse_tools(TOOLS, {"type": "allowed_tools", "allowed_tools": allowed}, None)
    assert (some.names, some.required, len(some.shown)) == ({"here"}, False, 2)
