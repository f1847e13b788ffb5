"""Conversations longer than the context: an error, or the oldest turns are left out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers import failure
from server_process import ServerProcess, serving

from sterna import LLM, RequestError
from sterna.llm.chat_request import ChatRequest
from sterna.llm.context_overflow import without_oldest
from sterna.server.settings import Settings
from sterna.server.submission import overflow_of

SYSTEM = {"role": "system", "content": "Be brief."}
OPTIONS: dict[str, Any] = {"max_tokens": 8, "temperature": 0, "seed": 1}
CHAT = "/v1/chat/completions"


def turns(n: int) -> list[dict[str, str]]:
    """A system message, n exchanges of some 60 tokens each, and a last question."""
    said = [SYSTEM]
    for i in range(n):
        said += [
            {"role": "user", "content": f"question {i} " + "word " * 40},
            {"role": "assistant", "content": f"answer {i}"},
        ]
    return [*said, {"role": "user", "content": "And now?"}]


def test_whole_turns_go() -> None:
    messages = turns(3)
    for room in range(len(messages) + 2):
        left, dropped = without_oldest(messages, len, room)
        assert left == [SYSTEM, *messages[1 + 2 * dropped :]]
        assert len(left) <= room or dropped == 3  # the last question stays in any case
        assert dropped == 0 or len(left) + 2 > room  # and no turn goes without need


@pytest.mark.parametrize("messages", [[], [SYSTEM], [{"role": "assistant", "content": "x"}]])
def test_nothing_to_drop(messages: list[dict[str, str]]) -> None:
    assert without_oldest(messages, len, 0) == (messages, 0)


def test_calls_go_with_their_turn() -> None:
    """A tool's result without its call would make no sense to a template."""
    call = [{"role": "assistant", "tool_calls": []}, {"role": "tool", "content": "12:30"}]
    messages = [
        {"role": "user", "content": "time?"}, *call, {"role": "user", "content": "date?"}, *call
    ]  # fmt: skip
    assert without_oldest(messages, len, 5) == (messages[3:], 1)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("nano", context=256)


def test_the_library(llm: LLM) -> None:
    messages = turns(12)
    failure(lambda: llm.chat(messages, **OPTIONS), RequestError, "must fit the context")
    done = llm.chat(messages, context_overflow="truncate-oldest-turn", **OPTIONS)
    assert 0 < done.dropped_turns < 12
    left = [SYSTEM, *messages[1 + 2 * done.dropped_turns :]]
    alone = llm.chat(left, **OPTIONS)
    assert (alone.tokens, alone.dropped_turns) == (done.tokens, 0)
    assert alone.prompt_tokens == done.prompt_tokens <= 256 - 8
    failure(lambda: llm.chat(messages, context_overflow="roll"), RequestError, "context_overflow")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("overflow"), "nano", "--context", "256") as running:
        yield running


def test_requests_ask_for_it(server: ServerProcess, llm: LLM) -> None:
    messages = turns(12)
    assert server.post(CHAT, messages=messages, **OPTIONS).status_code == 400
    answer = server.post(CHAT, messages=messages, truncation="auto", **OPTIONS)
    done = llm.chat(messages, context_overflow="truncate-oldest-turn", **OPTIONS)
    assert answer.json()["choices"][0]["message"]["content"] == done.content
    told = f"the oldest {done.dropped_turns} turns were left out"
    assert told in answer.headers["x-sterna-warning"]
    wrong = server.post(CHAT, messages=messages, truncation="middle", **OPTIONS)
    assert wrong.json()["error"]["param"] == "truncation"


@pytest.mark.parametrize(("truncation", "status"), [(None, 400), ("disabled", 400), ("auto", 200)])
def test_responses(server: ServerProcess, truncation: str | None, status: int) -> None:
    asked = {"input": turns(12), "max_output_tokens": 8}
    answer = server.post("/v1/responses", **asked, truncation=truncation)
    assert answer.status_code == status
    if status == 200:
        assert answer.json()["truncation"] == "auto"


def test_ollama(server: ServerProcess) -> None:
    asked = {"model": "nano", "messages": turns(12), "stream": False, "options": {"num_predict": 8}}
    assert server.post("/api/chat", **asked).status_code == 400
    assert server.post("/api/chat", **asked, truncate=True).status_code == 200


def test_a_server_that_truncates(tmp_path: Path) -> None:
    options = ("--context", "256", "--context-overflow", "truncate-oldest-turn")
    with serving(tmp_path, "nano", *options) as server:
        assert server.post(CHAT, messages=turns(12), **OPTIONS).status_code == 200
        asked = {"messages": turns(12)[1:], "max_tokens": 8, "model": "nano"}
        assert server.post("/v1/messages", **asked).status_code == 200
        refused = server.post(CHAT, messages=turns(12), truncation="disabled", **OPTIONS)
        assert refused.status_code == 400


def tokens_of(llm: LLM, chat: list[dict[str, str]]) -> list[int]:
    return llm.requests.chat_prompt(ChatRequest.of_options(chat, {})).tokens


def test_a_shifted_context(llm: LLM) -> None:
    """Where the context ends the answer goes on, as after a prompt of the tokens that are left."""
    chat = [SYSTEM, {"role": "user", "content": "Count, and never stop. " * 4}]
    options = OPTIONS | {"max_tokens": 400, "ignore_eos": True}
    done = llm.chat(chat, context_overflow="shift", **options)
    assert (len(done.tokens), done.finish_reason) == (400, "length")
    prompt = tokens_of(llm, chat)
    alone = llm.chat(chat, **options)
    assert len(prompt) + len(alone.tokens) == llm.context
    assert done.tokens[: len(alone.tokens)] == alone.tokens

    other = tokens_of(llm, [SYSTEM, {"role": "user", "content": "Else"}])
    keep = next(i for i, (a, b) in enumerate(zip(prompt, other, strict=False)) if a != b)
    assert keep > 4
    window, expected = [*prompt, *alone.tokens], list(alone.tokens)
    while len(expected) < 400:
        window = [*window[:keep], *window[keep + (llm.context - keep) // 2 :]]
        more = min(llm.context - len(window), 400 - len(expected))
        one = llm.generate(window, **options | {"max_tokens": more})
        window, expected = window + one.tokens, expected + one.tokens
    assert done.tokens == expected


def test_shifted_contexts_beside_others(llm: LLM) -> None:
    """Few pages, other requests, and a cancelled one change no token."""
    chats = [[SYSTEM, {"role": "user", "content": f"Count from {i}."}] for i in range(5)]
    options = OPTIONS | {"max_tokens": 300, "ignore_eos": True, "context_overflow": "shift"}
    alone = [llm.chat(chat, **options).tokens for chat in chats]
    small = LLM("nano", context=256, kv_bytes=12 * llm.engine.kv_cache.page_bytes)
    together = [done.tokens for done in small.chat(chats, **options)]
    assert together == alone
    sampled = options | {"temperature": 0.8, "repetition_penalty": 1.1, "mirostat": 2}
    assert small.chat(chats[0], **sampled).tokens == llm.chat(chats[0], **sampled).tokens


def test_a_long_system_prompt_leaves_no_room_to_shift(llm: LLM) -> None:
    chat = [{"role": "system", "content": "word " * 140}, {"role": "user", "content": "Hi"}]
    options = OPTIONS | {"max_tokens": 400, "ignore_eos": True}
    done = llm.chat(chat, context_overflow="shift", **options)
    assert len(tokens_of(llm, chat)) + len(done.tokens) == llm.context


@pytest.mark.parametrize("own", ["error", "truncate-oldest-turn", "shift"])
def test_the_words_of_requests(own: str) -> None:
    """A request's `truncation` comes before the server's setting, which says how to truncate."""
    settings = Settings(context_overflow=own)
    assert overflow_of(None, settings) == own
    assert overflow_of("disabled", settings) == "error"
    assert overflow_of("auto", settings) == ("truncate-oldest-turn" if own == "error" else own)
