"""The streams of the server's protocols have what a whole answer has."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from model_outputs.test_model_outputs import Client, answers, of_template

from sterna.outputs import Piece
from sterna.server.endpoints import ollama
from sterna.server.logprob_format import ContentLogprobs
from sterna.server.message_events import BlockStream
from sterna.server.response_events import ResponseEventStream
from sterna.server.response_tools import ResponseTools

#: Templates with marks, messages, and calls that nothing marks.
NAMES = (
    "Qwen3.5-4B",
    "openai-gpt-oss-120b",
    "meta-llama-Llama-3.1-8B-Instruct",
    "Kimi-K2-Thinking",
)
STEP = 3


def pieces(text: str) -> list[str]:
    return [text[i : i + STEP] for i in range(0, len(text), STEP)]


def of_messages(name: str, text: str) -> Client:
    """From Anthropic's events."""
    parser, blocks, made = answers(name).parser(), BlockStream(), Client({})
    deltas = [delta for piece in pieces(text) for delta in parser.feed(piece)] + parser.end()
    events = [data for delta in deltas for data in blocks.take(delta)] + blocks.close()
    for data in events:
        event = json.loads(data.decode().partition("data: ")[2])
        block, delta = event.get("content_block", {}), event.get("delta", {})
        made.content += delta.get("text", "")
        made.reasoning += delta.get("thinking", "")
        if block.get("type") == "tool_use":
            made.calls.append((block["name"], ""))
        if "partial_json" in delta:
            made.calls[-1] = made.calls[-1][0], made.calls[-1][1] + delta["partial_json"]
    return made


def of_ollama(name: str, text: str) -> tuple[str, str, list[tuple[str, Any]]]:
    """From ollama's lines."""
    parser, calls = answers(name).parser(), ollama._Calls()
    lines = [line for piece in pieces(text) for line in calls.messages(parser.feed(piece))]
    lines += calls.messages(parser.end(), final=True)
    functions = [one["function"] for line in lines for one in line.get("tool_calls", ())]
    return (
        "".join(line.get("thinking", "") for line in lines),
        "".join(line.get("content", "") for line in lines),
        [(one["name"], one["arguments"]) for one in functions],
    )


def of_responses(name: str, text: str) -> Client:
    """The message that is stored behind OpenAI's events."""
    stored: list[dict[str, Any]] = []

    async def pieces_of() -> AsyncIterator[tuple[int, Piece]]:
        for i, piece in enumerate(pieces(text)):
            yield 0, Piece(piece, i, None)

    def finish(reason: str, parser: Any, message: dict[str, Any]) -> dict[str, Any]:
        stored.append(message)
        return {"status": "completed"}

    async def read() -> None:
        async for _ in stream.stream():
            pass

    done: Any = SimpleNamespace(finish_reason="stop")
    active: Any = SimpleNamespace(id="r", pieces=pieces_of, completions=[done])
    tokenizer: Any = None
    stream = ResponseEventStream(
        active, answers(name).parser(), ContentLogprobs(tokenizer, None), ResponseTools(), dict,
        finish,
    )  # fmt: skip
    asyncio.run(read())
    return Client(stored[0])


@pytest.mark.parametrize("name", NAMES)
def test_streams_of_all_protocols(name: str) -> None:
    cases = of_template(name)
    for case in cases:
        whole = Client(answers(name).parser().message(case.raw))
        assert of_messages(name, case.raw) == whole, case
        assert of_responses(name, case.raw) == whole, case
        found = of_ollama(name, case.raw)
        assert found == (whole.reasoning, whole.content, list(case.calls)), case
    assert len(cases) > 40
