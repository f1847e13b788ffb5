"""The ASGI app: all endpoints behind the middleware."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from importlib import import_module
from pkgutil import iter_modules

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from sterna.errors import RequestError
from sterna.server import endpoints as endpoint_modules
from sterna.server.endpoints import webui
from sterna.server.errors import ApiError
from sterna.server.middleware import RequestMiddleware
from sterna.server.openapi import document
from sterna.server.routing import Endpoint, as_error, as_json
from sterna.server.service import Service
from sterna.server.settings import Settings

__all__ = ["create_app", "endpoints"]


def endpoints() -> list[Endpoint]:
    """List the endpoints of all modules in `sterna.server.endpoints`."""
    names = sorted(module.name for module in iter_modules(endpoint_modules.__path__))
    modules = [import_module(f"{endpoint_modules.__name__}.{name}") for name in names]
    return [endpoint for module in modules for endpoint in module.ENDPOINTS]


async def _no_endpoint(request: Request, error: Exception) -> Response:
    """Answer 404 or 405."""
    assert isinstance(error, HTTPException)
    words = {404: "Path not found.", 405: "Method not allowed."}
    answer = ApiError(error.status_code, words.get(error.status_code, error.detail))
    response = as_error(answer, request.scope)
    if error.status_code == 405:  # Starlette names the methods of one route of the path
        response.headers["allow"] = ", ".join(sorted(_methods(request)))
    return response


def _methods(request: Request) -> set[str]:
    """Return the methods of all routes that have the request's path."""
    routes = (r for r in request.app.routes if isinstance(r, Route))
    allowed = (r.methods for r in routes if r.matches(request.scope)[0] is not Match.NONE)
    return {method for methods in allowed for method in methods or ()}


def _tracing(settings: Settings) -> list[Middleware]:
    """Return the middleware that makes OpenTelemetry spans. RequestError if it is missing."""
    if not settings.otel:
        return []
    try:
        from starlette.middleware.opentelemetry import OpenTelemetryMiddleware
    except ImportError:
        raise RequestError(
            "otel: needs starlette 1.10 and opentelemetry-api; pip install opentelemetry-distro"
        ) from None
    return [Middleware(OpenTelemetryMiddleware, excluded_urls="/health,/metrics")]


def create_app(service: Service) -> Starlette:
    """Make an app for any ASGI server. Its lifespan opens and closes the service."""
    served, settings = endpoints(), service.settings
    if not settings.metrics:
        served = [endpoint for endpoint in served if endpoint.path != "/metrics"]
    if not settings.page:
        served = [endpoint for endpoint in served if endpoint not in webui.ENDPOINTS]
    described = document(served)

    async def openapi(request: Request) -> Response:
        return as_json(described)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        await service.open(app)
        yield
        await service.close()

    routes = [Route(e.path, e.handler, methods=[e.method]) for e in served]
    routes.append(Route("/openapi.json", openapi, methods=["GET"]))
    is_open = frozenset(endpoint.path for endpoint in served if endpoint.is_open)
    guard = Middleware(RequestMiddleware, service=service, open_paths=is_open)
    app = Starlette(
        routes=routes,
        middleware=[*_tracing(settings), guard],
        lifespan=lifespan,
        exception_handlers={HTTPException: _no_endpoint},
    )
    app.router.redirect_slashes = False
    app.state.service = service
    app.state.bodies = {(e.method, e.path): e.body for e in served if e.body is not None}
    return app
