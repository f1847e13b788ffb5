"""What an endpoint answers with: the events of its answer, or the whole of it."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from sterna.errors import SternaError
from sterna.server import errors
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError
from sterna.server.routing import as_json, service_of
from sterna.server.sse import EventStream, with_cancellation

__all__ = ["Responder", "respond"]

log = logging.getLogger("sterna.server")


class Responder(Protocol):
    """A body on its way to its choices."""

    def submit(self) -> Coroutine[Any, Any, None]:
        """Checks the body and submits it; what is wrong with it is raised here."""
        ...

    def stream(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """The event that ends a stream which fails, in the words of its protocol."""
        ...

    async def full(self) -> dict[str, Any]:
        """The answer in one piece."""
        ...


async def respond(
    request: Request, active: ActiveRequest, responder: Responder, stream: bool
) -> Response:
    """Answers, or the stream of their pieces; a client that leaves ends it in every phase."""
    work = responder.submit()
    if stream:
        await with_cancellation(request.receive, work, active.cancel)
        events = _events(responder, active)
        return EventStream(events, active.cancel, service_of(request).settings.ping)

    async def full() -> dict[str, Any]:
        await work
        return await responder.full()

    return as_json(await with_cancellation(request.receive, full(), active.cancel))


async def _events(responder: Responder, active: ActiveRequest) -> AsyncIterator[bytes]:
    """The events; an error among them becomes the last one."""
    try:
        async for data in responder.stream():
            yield data
    except Exception as error:
        if not isinstance(error, (ApiError, SternaError)):
            log.error("%s: failed", active.id, exc_info=error)
        active.stream_error = errors.to_api_error(error)
        yield responder.error_event(active.stream_error)
