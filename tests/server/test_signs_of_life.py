"""Streams that are silent for long, as while a prompt is read: each protocol's sign of life."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from waits import HANGS_S

from sterna import LLM
from sterna.server.app import create_app
from sterna.server.endpoints import messages, responses
from sterna.server.json_body import encode
from sterna.server.model_manager import ModelManager, ModelSource
from sterna.server.service import Service
from sterna.server.settings import Settings
from sterna.server.sse import EventStream

PING_S = 0.01
PINGS = 3  # for which a stream is silent


async def sent(stream: EventStream) -> bytes:
    """What a client that stays gets."""
    parts = []

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    async def receive() -> Any:
        await asyncio.Event().wait()

    with anyio.fail_after(HANGS_S):
        await stream({"type": "http"}, receive, send)
    return b"".join(parts)


def test_pings_come_between_events_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Never between two that were made together, however slowly the client reads."""
    made, pings = iter(range(100)), 0

    async def events() -> AsyncIterator[bytes]:
        first, second = next(made), next(made)
        yield b"%d " % first
        yield b"%d " % second
        while pings < PINGS:
            await asyncio.sleep(PING_S)
        yield b"%d" % next(made)

    def ping() -> bytes:
        nonlocal pings
        pings += 1
        return b"%d " % next(made)

    async def run() -> bytes:
        stream = EventStream(events(), lambda: None, PING_S, ping=ping)
        own = stream._send

        async def slowly(send: Any, data: bytes) -> None:
            await own(send, data)
            await asyncio.sleep(2 * PING_S)

        monkeypatch.setattr(stream, "_send", slowly)
        return await sent(stream)

    numbers = list(map(int, asyncio.run(run()).split()))
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= 3 + PINGS


@pytest.mark.parametrize(
    ("path", "sign"),
    [
        ("/v1/responses", b"event: response.in_progress\n"),
        ("/v1/messages", b"event: ping\n"),
        ("/v1/chat/completions", b": ping\n\n"),
    ],
)
def test_events_of_protocols(path: str, sign: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events for clients that do not count comments, in the order of their numbers."""
    pieces = responses.ActiveRequest.pieces
    got: list[bytes] = []

    async def late(self: Any) -> AsyncIterator[Any]:
        while b"".join(got).count(sign) < PINGS:
            await asyncio.sleep(PING_S)
        async for piece in pieces(self):
            yield piece

    monkeypatch.setattr(responses.ActiveRequest, "pieces", late)
    assert messages.ActiveRequest is responses.ActiveRequest
    body: dict[str, Any] = {"max_tokens": 2, "messages": [{"role": "user", "content": "a"}]}
    if path == "/v1/responses":
        body = {"input": "a", "max_output_tokens": 2}

    async def run() -> str:
        settings = Settings(metrics=False, ping=PING_S)
        models = ModelManager({"nano": ModelSource(lambda: LLM("nano", threads=1))}, {})
        service = Service(settings, models)
        app = create_app(service)
        data = encode({**body, "stream": True})
        asked = iter([{"type": "http.request", "body": data, "more_body": False}])

        async def receive() -> Any:
            if (one := next(asked, None)) is None:
                await asyncio.Event().wait()
            return one

        async def send(message: Any) -> None:
            got.append(message.get("body", b""))

        scope = {
            "type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
            "query_string": b"", "headers": [(b"host", b"localhost")], "http_version": "1.1",
        }  # fmt: skip
        try:
            with anyio.fail_after(HANGS_S):
                await app(scope, receive, send)
        finally:
            await service.close()
        return b"".join(got).decode()

    text = asyncio.run(run())
    told = [line[6:] for line in text.splitlines() if line[:6] == "data: " and line[6] == "{"]
    events = [json.loads(line) for line in told]
    kinds = [event.get("type") for event in events]
    if path == "/v1/responses":
        assert kinds.count("response.in_progress") > 2
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert kinds[-1] == "response.incomplete"
    elif path == "/v1/messages":
        assert (kinds[0], kinds[1], kinds[-1]) == ("message_start", "ping", "message_stop")
