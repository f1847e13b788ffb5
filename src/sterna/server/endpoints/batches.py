"""/v1/batches: OpenAI's Batch API."""

from __future__ import annotations

import re
import secrets
import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.server.batch.job import ENDPOINTS as PATHS
from sterna.server.batch.job import Batch
from sterna.server.errors import field_error, invalid
from sterna.server.json_body import read
from sterna.server.pagination import paginate
from sterna.server.routing import Endpoint, as_json, service_of

#: Seconds per unit of `completion_window`. OpenAI allows only 24h; slow machines may need more.
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
MAX_WINDOW_S = 30 * 86400
MAX_LIMIT, DEFAULT_LIMIT = 100, 20
MAX_METADATA, MAX_METADATA_CHARS = 16, 512
EXPIRES_S = (3600, 30 * 86400)


class Expiry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When the files that a batch writes are deleted: seconds after their creation."""

    seconds: int
    anchor: str = "created_at"


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """An input file with requests to one endpoint."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_expires_after: Expiry | None = None


async def create(request: Request) -> Response:
    """Create a batch; its input is checked in the background."""
    service = service_of(request)
    service.limits.require_open()
    batches, key = service.require_batches(), request.state.key
    body = await read(request, BatchRequest)
    if body.endpoint not in PATHS:
        raise invalid("endpoint", f"must be one of {', '.join(PATHS)}", body.endpoint)
    _check_metadata(body.metadata or {})
    expiry = body.output_expires_after
    if expiry is not None and (
        expiry.anchor != "created_at" or not EXPIRES_S[0] <= expiry.seconds <= EXPIRES_S[1]
    ):
        raise invalid(
            "output_expires_after",
            f"must have {EXPIRES_S[0]}..{EXPIRES_S[1]} seconds from created_at",
            expiry.seconds,
        )
    file_object = batches.files.get(body.input_file_id, key, "input_file_id")
    if file_object.purpose != "batch":
        raise invalid("input_file_id", "must name a file with purpose batch", file_object.purpose)
    now = int(time.time())
    batch = Batch(
        f"batch_{secrets.token_hex(12)}",
        key,
        body.endpoint,
        file_object.id,
        body.completion_window,
        now + _window(body.completion_window),
        now,
        metadata=body.metadata,
        output_expires_s=None if expiry is None else expiry.seconds,
    )
    await batches.create(batch)
    return as_json(batch.body())


def _window(text: str) -> int:
    """Parse a completion_window into seconds. ApiError 400."""
    match = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    seconds = int(match[1]) * UNITS[match[2]] if match else 0
    if not 1 <= seconds <= MAX_WINDOW_S:
        raise invalid("completion_window", "must be a duration such as 24h, at most 30d", text)
    return seconds


def _check_metadata(metadata: dict[str, str]) -> None:
    long = [text for pair in metadata.items() for text in pair if len(text) > MAX_METADATA_CHARS]
    if len(metadata) > MAX_METADATA or long:
        raise field_error(
            "metadata", f"must have at most {MAX_METADATA} texts of {MAX_METADATA_CHARS} characters"
        )


async def listed(request: Request) -> Response:
    """List the caller's batches."""
    batches = service_of(request).require_batches().owned_by(request.state.key)
    return as_json(paginate(request, batches, MAX_LIMIT, DEFAULT_LIMIT))


async def retrieve(request: Request) -> Response:
    """Return a batch."""
    return as_json(_own(request).body())


async def cancel(request: Request) -> Response:
    """Cancel a batch, which keeps the results it has."""
    batch = _own(request)
    await service_of(request).require_batches().cancel(batch)
    return as_json(batch.body())


def _own(request: Request) -> Batch:
    batches = service_of(request).require_batches()
    return batches.get(request.path_params["id"], request.state.key)


ENDPOINTS = [
    Endpoint(
        "POST", "/v1/batches", create, "Creates a batch from a file of requests.", BatchRequest
    ),
    Endpoint("GET", "/v1/batches", listed, "Lists the caller's batches."),
    Endpoint("GET", "/v1/batches/{id}", retrieve, "Returns a batch."),
    Endpoint("POST", "/v1/batches/{id}/cancel", cancel, "Cancels a batch."),
]
