"""Cancellations: none is lost, whatever came at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from sterna.server import json_body
from sterna.server.active_request import ActiveRequest
from sterna.server.batch import runner
from sterna.server.batch.runner import BatchRunner
from sterna.server.errors import ApiError
from sterna.server.sse import with_cancellation

#: Turns of the event loop until the cancellation; each of these calls ends within fewer.
TURNS = 12


async def body() -> None:
    """Read a body that is there."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    service = SimpleNamespace(max_body=64, settings=SimpleNamespace(body_timeout=30))
    app = SimpleNamespace(state=SimpleNamespace(service=service))
    await json_body.read_bytes(Request({"type": "http", "headers": [], "app": app}, receive))


async def answer() -> None:
    """Answer a client that stays."""

    async def receive() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    await with_cancellation(receive, asyncio.sleep(0), lambda: None)


@pytest.mark.parametrize("call", [body, answer])
def test_none_is_lost(call: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """At every turn of the loop, a task either has ended or ends as cancelled."""

    async def cancelled_after(turns: int) -> bool:
        task = asyncio.ensure_future(call())
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():
            await task
            return False
        with pytest.raises(asyncio.CancelledError):
            await task
        return True

    found = [asyncio.run(cancelled_after(turns)) for turns in range(TURNS)]
    assert found[0]
    assert not found[-1]


def test_a_request_that_is_cancelled_twice() -> None:
    """Its own end becomes an error response; that of its caller stays a cancellation."""

    async def ended(by_caller: bool) -> BaseException | None:
        given: Any = SimpleNamespace(name="m")
        active = ActiveRequest(given, given, "", "id")
        task = asyncio.ensure_future(active.run(asyncio.Event().wait()))
        await asyncio.sleep(0)
        active.cancel()
        if by_caller:
            task.cancel()
        (found,) = await asyncio.gather(task, return_exceptions=True)
        assert not active._tasks
        return found

    own = asyncio.run(ended(False))
    assert isinstance(own, ApiError)
    assert own.code == "cancelled"
    assert isinstance(asyncio.run(ended(True)), asyncio.CancelledError)


@pytest.mark.parametrize("end", ["draining", "cancelling"])
def test_a_batch_that_hears_later(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is not sent again once the server drains, or the batch is cancelled."""
    batch: Any = SimpleNamespace(running=True, key="", endpoint="/v1/chat/completions")
    limits = SimpleNamespace(draining=False)
    batches: Any = SimpleNamespace(_app=object(), _limits=limits)
    requests: Any = SimpleNamespace(read=lambda index: ("a", b"{}"))
    asked = []

    async def post(*_: Any) -> tuple[int, bytes]:
        asked.append(end)
        if len(asked) == 3:
            limits.draining, batch.running = end == "draining", end != "cancelling"
        assert len(asked) < 9
        return 503, b""

    monkeypatch.setattr(runner, "RETRY_S", 0.0)
    monkeypatch.setattr(runner.inprocess, "post", post)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(BatchRunner._answer(batches, batch, requests, batches, 0, asyncio.Event()))
    assert len(asked) == 3
