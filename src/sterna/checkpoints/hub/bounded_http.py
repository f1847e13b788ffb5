"""One request to the Hub and its answer, with limits of time, size and redirections.

Requests go through the session of huggingface_hub (token, proxies, offline mode). By itself it
waits without a limit, reads whole answers, even of errors, and leaves redirections to its caller.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from sterna.checkpoints.hub.failures import host
from sterna.errors import HubError, brief

__all__ = ["Slow", "answer", "body", "headers", "pieces"]

MAX_REDIRECTS = 10
MAX_BODY_BYTES = 64 << 20  # of a listing: 300 bytes a file, of repositories of 100,000 files
MAX_BODY_S = 120.0
SLOW_S, SLOW_BYTES = 60.0, 64 << 10  # a transfer that brings less in this time is cut


class Slow(Exception):
    """An answer is too slow or too long."""


def headers() -> dict[str, str]:
    """Return the headers of a request, with the user's token.

    The package's own function sends a request without limits to ask which agents exist.
    """
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"User-Agent": "sterna"} | ({"Authorization": f"Bearer {token}"} if token else {})


@contextlib.contextmanager
def answer(url: str, headers: dict[str, str]) -> Iterator[Any]:
    """Send a GET and yield the answer, with its body still to be read.

    Its connection and each piece of it must come within HF_HUB_DOWNLOAD_TIMEOUT seconds. Raises
    HubError for redirections that lead nowhere, and what huggingface_hub and its HTTP client raise.
    """
    from huggingface_hub.utils import hf_raise_for_status

    # identity: a compressed answer could not be resumed, nor bounded by the file's size
    response = _followed(url, {**headers, "Accept-Encoding": "identity"})
    try:
        if response.status_code >= 400:
            # Without the body: the package would read it to its end.
            hf_raise_for_status(
                type(response)(
                    response.status_code,
                    headers={k: v for k, v in response.headers.items() if k.startswith("x-")},
                    request=response.request,
                )
            )
        yield response
    finally:
        response.close()


def _followed(url: str, headers: dict[str, str]) -> Any:
    """Follow redirections to an answer; the client leaves out the token for other hosts."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    session = get_session()
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    request = session.build_request("GET", url, headers=headers, timeout=timeout)
    seen = {str(request.url)}
    while True:
        response = session.send(request, stream=True, follow_redirects=False)
        if not response.is_redirect:
            return response
        before, target = request.url, response.headers.get("Location", "")
        response.close()
        following = response.next_request
        if following is None:
            raise _astray("to no address")
        request = following
        if request.url.scheme not in ("http", "https"):
            raise _astray(f"to the scheme {brief(target.partition(':')[0])}")
        if (before.scheme, request.url.scheme) == ("https", "http"):
            raise _astray("from https to http")
        if str(request.url) in seen:
            raise _astray("in a circle")
        if len(seen) > MAX_REDIRECTS:
            raise _astray(f"more than {MAX_REDIRECTS} times")
        seen.add(str(request.url))


def _astray(where: str) -> HubError:
    # The address may be signed, and then gives access to the file.
    return HubError(
        f"{host()}: must lead to what was asked for over http or https, but redirects {where}; "
        "check HF_ENDPOINT, the network's login page and the proxy",
        "server",
    )


def pieces(response: Any) -> Iterator[bytes]:
    """Yield the body as it comes; Slow if SLOW_S seconds bring less than SLOW_BYTES."""
    began, came = time.monotonic(), 0
    for piece in response.iter_bytes():  # a fixed size would lose the last ones of a cut transfer
        yield piece
        came += len(piece)
        if time.monotonic() - began > SLOW_S:
            if came < SLOW_BYTES:
                raise Slow
            began, came = time.monotonic(), 0


def body(response: Any) -> bytes:
    """Read the whole body of an answer into memory; HubError if it is too long."""
    data, end = bytearray(), time.monotonic() + MAX_BODY_S
    with contextlib.suppress(Slow):
        for piece in pieces(response):
            data += piece
            if len(data) > MAX_BODY_BYTES or time.monotonic() > end:
                raise Slow
        return bytes(data)
    raise HubError(
        f"{host()}: must answer with at most {MAX_BODY_BYTES:,} bytes in {MAX_BODY_S:.0f} s, but "
        "sends more or slower; check HF_ENDPOINT and the proxy",
        "server",
    )
