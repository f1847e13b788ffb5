"""Uploads: a multipart form with a file, bounded in bytes and time, and kept on disk."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from sterna.server.body_parts import body_parts
from sterna.server.errors import ApiError

__all__ = ["read_form"]

MAX_FIELDS, MAX_FIELD_BYTES = 8, 4096
#: For the fields and boundaries of the form.
MARGIN_BYTES = 64 << 10


async def read_form(request: Request, max_bytes: int) -> FormData:
    """Read a form with one file; the caller closes it. ApiError 400, 408 or 413."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "body: must be multipart/form-data")
    most = max_bytes + MARGIN_BYTES
    too_large = ApiError(413, f"file: must have at most {most} bytes, but has more")
    parser = MultiPartParser(
        request.headers,
        body_parts(request, most, too_large),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"body: must be a form with one file, but is not: {error}") from None
