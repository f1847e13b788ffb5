"""What an endpoint answers with: the events of its answer, or the whole of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.routing import as_json
from sterna.server.service import Running
from sterna.server.sse import Events, events_of, until_gone

__all__ = ["Answering", "respond"]


class Answering(Protocol):
    """A body on its way to its choices."""

    def begin(self) -> Coroutine[Any, Any, None]:
        """Checks the body and submits it; what is wrong with it is raised here."""
        ...

    def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events."""
        ...

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        ...


async def respond(
    request: Request, running: Running, answering: Answering, stream: bool
) -> Response:
    """Answers, or the stream of their pieces; a client that leaves ends it in every phase."""
    work = answering.begin()
    if stream:
        await until_gone(request.receive, work, running.cancel)
        events = events_of(answering.events(), running)
        return Events(events, running.cancel, running.service.settings.ping)

    async def whole() -> dict[str, Any]:
        await work
        return await answering.whole()

    return as_json(await until_gone(request.receive, whole(), running.cancel))
