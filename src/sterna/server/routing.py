"""`Endpoint`: a route, what it takes, and what the OpenAPI document says of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sterna.server.errors import ApiError
from sterna.server.json_body import encode
from sterna.server.service import Service

__all__ = ["Endpoint", "as_error", "as_json", "service_of"]


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


def as_error(answer: ApiError, scope: Scope) -> Response:
    """An error in the words of the protocol that the request is of, by its path or its headers."""
    anthropic = scope["path"].startswith("/v1/messages") or any(
        name == b"anthropic-version" for name, _ in scope["headers"]
    )
    body = answer.anthropic_body() if anthropic else answer.body()
    return as_json(body, answer.status, answer.headers())


def service_of(request: Request) -> Service:
    """What the endpoints of the request's app share."""
    service: Service = request.app.state.service
    return service
