"""/v1/requests: list and cancel requests in progress."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from sterna.errors import shown
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import field_error
from sterna.server.routing import Endpoint, as_json, service_of


def _own(request: Request) -> dict[str, ActiveRequest]:
    active = service_of(request).active
    return {id: one for id, one in active.items() if one.key == request.state.key}


async def listed(request: Request) -> Response:
    """List the caller's requests in progress."""
    rows = [
        {
            "id": one.id,
            "object": "request",
            "model": one.name,
            "created": one.created,
            "seconds": round(time.perf_counter() - one.began, 3),
            "usage": one.usage(),
        }
        for one in _own(request).values()
    ]
    return as_json({"object": "list", "data": rows})


async def cancel(request: Request) -> Response:
    """Cancel one of the caller's requests."""
    id = request.path_params["id"]
    active = _own(request).get(id)
    if active is None:
        raise field_error("id", f"you have no request {shown(id)} in progress", status=404)
    active.cancel()
    return as_json({"id": id, "cancelled": True})


ENDPOINTS = [
    Endpoint("GET", "/v1/requests", listed, "Lists the caller's requests in progress."),
    Endpoint("DELETE", "/v1/requests/{id}", cancel, "Cancels one of them."),
]
