"""`Endpoint`: a route, what it takes, and what the OpenAPI document says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.bodies import encode
from sterna.server.service import Service

__all__ = ["Endpoint", "as_json", "service_of"]


@dataclass(frozen=True)
class Endpoint:
    """A path with its method. body: the struct that it takes; is_open: without a key."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    body: type | None = None
    is_open: bool = False


def as_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A response of JSON."""
    return Response(encode(value), status, headers, "application/json")


def service_of(request: Request) -> Service:
    """What the endpoints of the request's app share."""
    service: Service = request.app.state.service
    return service
