"""/v1/files: the files that batches read and write."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from sterna.server.errors import field_error, invalid
from sterna.server.file_store import FileObject
from sterna.server.multipart_body import read_form
from sterna.server.pagination import paginate
from sterna.server.routing import Endpoint, as_json, service_of

MAX_BYTES = 200 << 20  #: per file, as OpenAI defines it
MAX_LIMIT = 10_000
EXPIRES_S = (3600, 30 * 86400)  #: bounds of `expires_after`, as OpenAI defines them
MAX_NAME = 255


async def upload(request: Request) -> Response:
    """Store a file."""
    service = service_of(request)
    service.limits.require_open()
    files = service.require_batches().files
    form = await read_form(request, min(MAX_BYTES, files.max_bytes))
    try:
        file, purpose = form.get("file"), form.get("purpose")
        if not isinstance(file, UploadFile):
            raise field_error("file", "is missing")
        if purpose != "batch":
            raise invalid("purpose", "must be batch", purpose)
        expires_s = _expires(form)
        name, size = (file.filename or "file")[:MAX_NAME], file.size or 0
        write = partial(shutil.copyfileobj, file.file)
        key: str = request.state.key
        file_object = await asyncio.to_thread(files.add, key, name, purpose, size, write, expires_s)
    finally:
        await form.close()
    return as_json(file_object.body())


def _expires(form: FormData) -> int | None:
    """Return the seconds until a file is deleted; None is never."""
    anchor, seconds = (form.get(f"expires_after[{name}]") for name in ("anchor", "seconds"))
    if anchor is None and seconds is None:
        return None
    low, high = EXPIRES_S
    if anchor != "created_at":
        raise invalid("expires_after.anchor", "must be created_at", anchor)
    good = isinstance(seconds, str) and seconds.isascii() and seconds.isdigit()
    if not good or not low <= int(str(seconds)[:9]) <= high:
        raise invalid("expires_after.seconds", f"must lie in {low}..{high}", seconds)
    return int(str(seconds))


async def listed(request: Request) -> Response:
    """List the caller's files."""
    files = service_of(request).require_batches().files.owned_by(request.state.key)
    purpose = request.query_params.get("purpose")
    wanted = [file_object for file_object in files if purpose in (None, file_object.purpose)]
    return as_json(paginate(request, wanted, MAX_LIMIT, MAX_LIMIT))


async def retrieve(request: Request) -> Response:
    """Return a file's metadata."""
    return as_json(_own(request).body())


async def content(request: Request) -> Response:
    """Return a file's bytes."""
    file_object = _own(request)
    path = service_of(request).require_batches().files.path(file_object.id)
    return FileResponse(path, media_type="application/octet-stream")


async def delete(request: Request) -> Response:
    """Delete a file. ApiError 400 if a running batch reads it."""
    file_object, batches = _own(request), service_of(request).require_batches()
    if batches.uses(file_object.id):
        raise field_error("id", "must not name a file that a running batch reads")
    await asyncio.to_thread(batches.files.delete, file_object.id)
    return as_json({"id": file_object.id, "object": "file", "deleted": True})


def _own(request: Request) -> FileObject:
    files = service_of(request).require_batches().files
    return files.get(request.path_params["id"], request.state.key)


ENDPOINTS = [
    Endpoint("POST", "/v1/files", upload, "Stores a file (multipart/form-data: file, purpose)."),
    Endpoint("GET", "/v1/files", listed, "Lists the caller's files."),
    Endpoint("GET", "/v1/files/{id}", retrieve, "Returns a file's metadata."),
    Endpoint("GET", "/v1/files/{id}/content", content, "Returns a file's bytes."),
    Endpoint("DELETE", "/v1/files/{id}", delete, "Deletes a file."),
]
