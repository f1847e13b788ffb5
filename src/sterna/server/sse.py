"""Server-sent events, and cancellation when a client disconnects."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import anyio
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from sterna.server.json_body import encode

__all__ = ["DONE", "EventStream", "event", "with_cancellation"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment: clients ignore it, proxies keep the connection open
HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # or nginx would hold events back
}

T = TypeVar("T")


def event(value: Any, name: str | None = None) -> bytes:
    """Encode a value as one event. Its JSON has no raw line breaks."""
    head = b"" if name is None else b"event: " + name.encode() + b"\n"
    return head + b"data: " + encode(value) + b"\n\n"


class EventStream(Response):
    """A response that streams events.

    on_disconnect: called if the client disconnects early; it must end the events.
    ping_s: seconds without an event after which a sign of life is sent; None: never. ping: makes
    it, while the next event is awaited; by default a comment.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        on_disconnect: Callable[[], None],
        ping_s: float | None,
        headers: dict[str, str] | None = None,
        ping: Callable[[], bytes] | None = None,
    ) -> None:
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._events, self._on_disconnect, self._ping_s = events, on_disconnect, ping_s
        self._ping = ping or (lambda: PING)
        self._sent, self._waits = time.monotonic(), False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events as they come."""
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        watch = asyncio.ensure_future(self._watch(receive, send))
        try:
            self._waits = True
            async for data in self._events:
                self._waits = False  # no ping may come between events that are made already
                await self._send(send, data)
                self._waits = True
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            watch.cancel()

    async def _send(self, send: Send, data: bytes) -> None:
        self._sent = time.monotonic()
        await send({"type": "http.response.body", "body": data, "more_body": True})

    async def _watch(self, receive: Receive, send: Send) -> None:
        while True:
            try:
                with anyio.fail_after(self._ping_s):
                    message = await receive()
            except TimeoutError:
                silent = time.monotonic() - self._sent
                if self._waits and self._ping_s and silent >= self._ping_s:
                    await self._send(send, self._ping())
                continue
            if message["type"] == "http.disconnect":
                self._on_disconnect()
                return


async def with_cancellation(
    receive: Callable[[], Coroutine[Any, Any, Message] | Any],
    answer: Coroutine[Any, Any, T],
    on_disconnect: Callable[[], None],
) -> T:
    """Await an answer; call `on_disconnect` if the client disconnects first."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        on_disconnect()

    watching = asyncio.ensure_future(watch())
    try:
        return await answer
    finally:
        watching.cancel()
        await asyncio.wait({watching})
