"""Cancellations: none is lost, whatever came at the same moment."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request

from sterna.server import json_body
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
