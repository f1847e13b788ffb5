"""/v1/requests: what a key has running, and an end to one of it."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import Response

from sterna.errors import shown
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError
from sterna.server.routing import Endpoint, as_json, service_of


def _own(request: Request) -> dict[str, ActiveRequest]:
    active = service_of(request).active
    return {id: one for id, one in active.items() if one.key == request.state.key}


async def listed(request: Request) -> Response:
    """The caller's requests that have not ended."""
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
    """Ends one of them as it is."""
    id = request.path_params["id"]
    found = _own(request).get(id)
    if found is None:
        raise ApiError(404, f"id: no request of yours that runs is {shown(id)}", param="id")
    found.cancel()
    return as_json({"id": id, "cancelled": True})


ENDPOINTS = [
    Endpoint("GET", "/v1/requests", listed, "Requests of the caller that run."),
    Endpoint("DELETE", "/v1/requests/{id}", cancel, "Ends one of them."),
]
