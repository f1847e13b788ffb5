"""`Endpoint`: a route with its description, and helpers for handlers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from sterna.server.errors import ApiError
from sterna.server.json_body import encode
from sterna.server.service import Service

__all__ = ["Endpoint", "as_error", "as_json", "is_anthropic", "service_of"]


@dataclass(frozen=True)
class Endpoint:
    """A method and a path. body: the struct of the JSON body; is_open: needs no key."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    body: type | None = None
    is_open: bool = False


def as_json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Make a JSON response."""
    return Response(encode(value), status, headers, "application/json")


def as_error(answer: ApiError, scope: Scope) -> Response:
    """Make an error in the form of the protocol of path or headers: ollama's, Anthropic's, else
    OpenAI's."""
    if scope["path"].startswith("/api/") and not scope["path"].startswith("/api/v"):
        return as_json({"error": answer.message}, answer.status, answer.headers())
    body = answer.anthropic_body() if is_anthropic(scope) else answer.body()
    return as_json(body, answer.status, answer.headers())


def is_anthropic(scope: Scope) -> bool:
    """Whether a request is of Anthropic's protocol, by its path or the header of its clients."""
    return scope["path"].startswith("/v1/messages") or any(
        name == b"anthropic-version" for name, _ in scope["headers"]
    )


def service_of(request: Request) -> Service:
    """Return the service of the request's app."""
    service: Service = request.app.state.service
    return service
