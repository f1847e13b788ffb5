"""Uploads: a multipart form with a file, bounded in bytes and time, and kept on disk."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import anyio
from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sterna.server.errors import ApiError

__all__ = ["read_form"]

MAX_FIELDS, MAX_FIELD_BYTES = 8, 4096
#: For the fields and boundaries of the form.
MARGIN_BYTES = 64 << 10
#: Bytes per body timeout.
BYTES_PER_TIMEOUT = 1 << 20


async def read_form(request: Request, max_bytes: int) -> FormData:
    """Read a form with one file; the caller closes it. ApiError 400, 408 or 413."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "body: must be multipart/form-data")
    parser = MultiPartParser(
        request.headers,
        _bounded(request, max_bytes + MARGIN_BYTES),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"body: must be a form with one file, but is not: {error}") from None
    except ClientDisconnect:
        raise ApiError(400, "body: is incomplete, because the connection ended") from None


async def _bounded(request: Request, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body, with the body timeout for each MiB of it."""
    timeout = request.app.state.service.settings.body_timeout
    began, count, parts = time.monotonic(), 0, request.stream().__aiter__()
    while True:
        left = began + timeout * (1 + count / BYTES_PER_TIMEOUT) - time.monotonic()
        try:
            with anyio.fail_after(max(0.0, left)):
                part = await parts.__anext__()
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(
                408, f"body: must arrive at 1 MiB per {timeout:g} seconds, but did not"
            ) from None
        count += len(part)
        if count > max_bytes:
            raise ApiError(413, f"file: must have at most {max_bytes} bytes, but has more")
        yield part
