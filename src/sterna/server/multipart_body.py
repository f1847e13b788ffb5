"""A form with a file, as it comes: bounded in bytes and in time, and on the disk, not in memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from starlette.datastructures import FormData
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from sterna.server.errors import ApiError

__all__ = ["read_form"]

MAX_FIELDS, MAX_FIELD_BYTES = 8, 4096
#: Beside the file: the form's fields and boundaries.
MARGIN_BYTES = 64 << 10
#: A body has its time for each so many bytes.
BYTES_IN_TIME = 1 << 20


async def read_form(request: Request, most: int) -> FormData:
    """A form with one file of at most so many bytes; to be closed. ApiError 400, 408 or 413."""
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise ApiError(400, "body: must be multipart/form-data")
    parser = MultiPartParser(
        request.headers,
        _bounded(request, most + MARGIN_BYTES),
        max_files=1,
        max_fields=MAX_FIELDS,
        max_part_size=MAX_FIELD_BYTES,
    )
    try:
        return await parser.parse()
    except MultiPartException as error:
        raise ApiError(400, f"body: must be a form with one file, but is not: {error}") from None
    except ClientDisconnect:
        raise ApiError(400, "body: the connection ended before it did") from None


async def _bounded(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    """The parts of a body, each mebibyte of it within the time that the settings have for one."""
    patience = request.app.state.service.settings.body_timeout
    began, count, parts = time.monotonic(), 0, request.stream().__aiter__()
    while True:
        left = began + patience * (1 + count / BYTES_IN_TIME) - time.monotonic()
        try:
            part = await asyncio.wait_for(parts.__anext__(), max(0.0, left))
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            raise ApiError(
                408, f"body: must come with a MiB in {patience:g} seconds, but did not"
            ) from None
        count += len(part)
        if count > most:
            raise ApiError(413, f"file: must have at most {most} bytes, but has more")
        yield part
