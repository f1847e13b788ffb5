"""Images of requests: in data: URLs, or at addresses of hosts that the server's settings allow.

A request cannot name a file of this machine. Images are fetched only from allowed hosts, over at
most three redirects, none of which leads into a private network.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urljoin, urlsplit

from sterna.errors import shown
from sterna.images.loading import MAX_BYTES
from sterna.server.errors import field_error, invalid

__all__ = ["RequestImage", "image_of_part"]

MOST_REDIRECTS = 3
CONNECT_S = 5.0  #: for a connection, and for each piece of an answer
FETCH_S = 20.0  #: for the whole image, with its headers and redirects
RETRY_AFTER_S = 5  #: what a client is told when a host is late, which may be this machine's fault
_CHUNK = 1 << 16


@dataclass(frozen=True)
class RequestImage:
    """An image that a request names, not yet fetched. where: its place in the request."""

    url: str
    where: str

    def source(self, hosts: tuple[str, ...]) -> str | bytes:
        """Return a source for `load_image`; blocks while the image is fetched.

        hosts: the allowed hosts. ApiError 400.
        """
        if self.url[:5].lower() == "data:":
            return self.url
        try:
            return _fetch(self.url, hosts)
        except _Refused as error:
            raise field_error(self.where, f"{error}") from None
        except (TimeoutError, _Late):
            raise field_error(
                self.where,
                f"must come within {FETCH_S:g} s, but its host is late; try "
                "again, or send the image as a data: URL",
                status=503,
                code="image_late",
                retry_after=RETRY_AFTER_S,
            ) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise field_error(
                self.where,
                "must be an image that can be fetched, but got "
                f"{type(error).__name__}; send it as a data: URL",
            ) from None


def image_of_part(part: Mapping[str, Any], where: str) -> RequestImage | None:
    """Return the image of a content part in OpenAI's or Anthropic's form, None for another part.

    ApiError 400 for one without a URL.
    """
    kind = part.get("type")
    if kind in ("image_url", "input_image"):
        image_url: Any = part.get("image_url")
        url = image_url.get("url") if isinstance(image_url, dict) else image_url
    elif kind == "image":
        source: Any = part.get("source")
        source = source if isinstance(source, dict) else {}
        url = source.get("url")
        if source.get("type") == "base64":
            url = f"data:{source.get('media_type')};base64,{source.get('data')}"
    else:
        return None
    if not isinstance(url, str) or not url:
        raise invalid(where, "must be an image with a URL or with base64 data", sorted(part))
    return RequestImage(url, where)


class _Refused(Exception):
    """An address that is not fetched; the message says why."""


class _Late(Exception):
    """The host, or the name server, took too long."""


def _fetch(url: str, hosts: tuple[str, ...]) -> bytes:
    deadline = time.monotonic() + FETCH_S
    asked = urlsplit(url)
    for _ in range(MOST_REDIRECTS + 1):
        parts = urlsplit(url)
        _check_host(parts, hosts)
        same = (parts.hostname, parts.port) == (asked.hostname, asked.port)
        address = _address(parts, private=same and parts.hostname in hosts)
        response = _get(parts, address, deadline)
        if isinstance(response, bytes):
            return response
        url = urljoin(url, response)
    raise _Refused(f"must be an image within {MOST_REDIRECTS} redirects, but got more")


def _check_host(parts: SplitResult, hosts: tuple[str, ...]) -> None:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise _Refused("must be a data: URL, or an address with http or https")
    host = parts.hostname.lower()
    if not any(host == one or one == "*" or _below(host, one) for one in map(str.lower, hosts)):
        raise _Refused(
            f"must be a data: URL, but got an address at {shown(host)}; the server fetches from "
            "hosts that --allow-image-urls names"
        )


def _below(host: str, pattern: str) -> bool:
    return pattern.startswith("*.") and host.endswith(pattern[1:])


def _address(parts: SplitResult, private: bool) -> tuple[str, int]:
    """Resolve a host once, so that the connection goes to the address that was checked.

    private: whether the address may be in a private network, since the settings name this host.
    """
    assert parts.hostname is not None
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        infos = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        if error.errno == socket.EAI_AGAIN:
            raise _Late from None
        raise
    addresses = [str(one[4][0]) for one in infos]
    if not private and not all(_is_public(address) for address in addresses):
        raise _Refused("must be at a public address, but got one of a private network")
    return addresses[0], port


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address.partition("%")[0])
    mapped = getattr(ip, "ipv4_mapped", None)
    ip = ip if mapped is None else mapped
    return ip.is_global and not ip.is_multicast


def _get(parts: SplitResult, address: tuple[str, int], deadline: float) -> bytes | str:
    """Return the bytes at an address, or the URL of a redirect."""
    assert parts.hostname is not None
    plain = socket.create_connection(address, timeout=CONNECT_S)
    with plain, _ended_at(deadline, plain):
        sock = plain
        if parts.scheme == "https":
            context = ssl.create_default_context()
            sock = context.wrap_socket(plain, server_hostname=parts.hostname)
        connection = http.client.HTTPConnection(parts.hostname, address[1], timeout=CONNECT_S)
        connection.sock = sock  # not one that it resolves for itself
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        with contextlib.closing(connection):
            connection.request("GET", path, headers={"Accept": "image/*", "User-Agent": "sterna"})
            answer = connection.getresponse()
            where = answer.getheader("Location")
            if answer.status in (301, 302, 303, 307, 308) and where:
                return where
            if answer.status != 200:
                raise _Refused(f"must be an image, but its host answered {answer.status}")
            return _read(answer)


@contextlib.contextmanager
def _ended_at(deadline: float, connection: socket.socket) -> Iterator[None]:
    """Shut a connection down at the deadline, within the handshake or a header as well.

    A host that sends a byte every few seconds would pass the timeouts of single reads.
    """
    late, same = threading.Event(), connection.dup()  # TLS takes the socket's own descriptor

    def end() -> None:
        late.set()
        with contextlib.suppress(OSError):
            same.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(max(0.0, deadline - time.monotonic()), end)
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException, ValueError):
        if not late.is_set():
            raise
    finally:
        timer.cancel()
        timer.join()
        same.close()
    if late.is_set() or time.monotonic() > deadline:
        raise _Late


def _read(answer: http.client.HTTPResponse) -> bytes:
    data = bytearray()
    while piece := answer.read1(_CHUNK):
        data += piece
        if len(data) > MAX_BYTES:
            raise _Refused(f"must be at most {MAX_BYTES >> 20} MiB, but has more")
    return bytes(data)
