"""`body_parts`: a request's body as it comes, bounded in bytes and in time."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator

import anyio
from starlette.requests import ClientDisconnect, Request

from sterna.server.errors import ApiError

__all__ = ["body_parts"]

#: Bytes per body timeout: a long body may take longer.
BYTES_PER_TIMEOUT = 1 << 20
#: Share of the timeout that each part has at least: what came while the server was busy counts.
GRACE = 0.1


async def body_parts(
    request: Request, most: int, too_large: ApiError
) -> AsyncGenerator[bytes, None]:
    """Yield the parts of a body of at most `most` bytes, with the body timeout for each MiB of it.

    ApiError 400 if the connection ends, 408, or `too_large`.
    """
    timeout = request.app.state.service.settings.body_timeout
    began, count, parts = time.monotonic(), 0, request.stream().__aiter__()
    while True:
        left = began + timeout * (1 + count / BYTES_PER_TIMEOUT) - time.monotonic()
        try:
            with anyio.fail_after(max(GRACE * timeout, left)):
                part = await parts.__anext__()
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise ApiError(
                408, f"body: must arrive at 1 MiB per {timeout:g} seconds, but did not"
            ) from None
        except ClientDisconnect:
            raise ApiError(400, "body: is incomplete, because the connection ended") from None
        count += len(part)
        if count > most:
            raise too_large
        yield part
