"""`Responder`: makes the response of one protocol, whole or as a stream."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
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

JSON_LINES = "application/x-ndjson"

_log = logging.getLogger("sterna.server")


class Responder(Protocol):
    """One request of an endpoint, and its response in the protocol's form."""

    def submit(self) -> Coroutine[Any, Any, None]:
        """Check the request and submit it to the engine. Raises all errors of the request."""
        ...

    def stream(self) -> AsyncIterator[bytes]:
        """Yield the response as server-sent events."""
        ...

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        ...

    async def full(self) -> dict[str, Any]:
        """Wait for the whole response."""
        ...


async def respond(
    request: Request,
    active: ActiveRequest,
    responder: Responder,
    stream: bool,
    *,
    lines: bool = False,
    names: Mapping[str, str] | None = None,
    ping: Callable[[], bytes] | None = None,
) -> Response:
    """Answer a request, whole or as a stream. A client that disconnects ends it at any time.

    lines: the stream is of JSON lines, not of server-sent events. names: the protocol's names of
    chat fields, for errors. ping: makes a sign of life of a silent stream, by default a comment.
    """
    names = names or {}
    work = responder.submit()
    with errors.renaming_params(names), errors.renaming_params(active.names):
        if stream:
            await with_cancellation(request.receive, work, active.cancel)
            events = _events(responder, active, names)
            if lines:
                return EventStream(events, active.cancel, None, {"content-type": JSON_LINES})
            ping_s = service_of(request).settings.ping
            return EventStream(events, active.cancel, ping_s, ping=ping)

        async def full() -> dict[str, Any]:
            await work
            return await responder.full()

        return as_json(await with_cancellation(request.receive, full(), active.cancel))


async def _events(
    responder: Responder, active: ActiveRequest, names: Mapping[str, str]
) -> AsyncIterator[bytes]:
    """Yield the events of a stream; an exception becomes the last one."""
    try:
        async for data in responder.stream():
            yield data
    except Exception as error:
        if not isinstance(error, (ApiError, SternaError)):
            _log.error("%s: failed", active.id, exc_info=error)
        said = errors.rename_param(errors.to_api_error(error), active.names)
        active.stream_error = errors.rename_param(said, names)
        yield responder.error_event(active.stream_error)
