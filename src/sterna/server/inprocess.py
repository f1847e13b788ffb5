"""Requests from within the process, without a socket, for a known owner."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Message

__all__ = ["post"]


async def post(app: ASGIApp, path: str, body: bytes, state: dict[str, Any]) -> tuple[int, bytes]:
    """POST to the app; return the status and the body of its response.

    state: the request's state, with its `id`, the trusted name of its `key`, and for batches
    `idle_event` (see `Service.begin`). Cancelling the call ends the request.
    """
    status, sent, over = 0, bytearray(), asyncio.Event()
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Message:
        if messages:
            return messages.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        sent.extend(message.get("body", b""))

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(b"content-type", b"application/json")],
        "client": None,
        "server": None,
        "state": state,
    }
    try:
        await app(scope, receive, send)
    finally:
        over.set()
    return status, bytes(sent)
