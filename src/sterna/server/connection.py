"""Connections with timeouts for slow clients. uvicorn's own wait without a limit."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from sterna.server.errors import ApiError
from sterna.server.routing import as_error

__all__ = ["MAX_HEADER_BYTES", "connection_class"]

MAX_HEADER_BYTES = 32 << 10
#: Bytes that may wait in our memory for a slow reader; the system buffers about as much again.
WRITE_BUFFER_BYTES = 64 << 10


def connection_class(header_timeout: float, write_timeout: float) -> type[H11Protocol]:
    """Make the connection protocol for uvicorn.

    header_timeout: seconds until a request's headers must be complete, counted from the connection
    or from the first byte of a later request. write_timeout: seconds in which a client must read
    the data that waits for it. A client that is too slow is disconnected, which ends its request.
    """

    class Connection(H11Protocol):
        _headers_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _head = b""  # of the request that is being read

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # uvicorn would log a line for each bad client.
            self.logger = logging.getLogger("sterna.server.connection")
            transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
            self._await_headers()

        def connection_lost(self, exc: Exception | None) -> None:
            _stop(self._headers_timer)
            self._headers_timer = None
            _stop(self._write_timer)
            self._write_timer = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if self._between_requests:
                if self._headers_timer is None:
                    self._await_headers()
                    self._head = b""
                self._head = (self._head + data)[:MAX_HEADER_BYTES]
            super().data_received(data)
            if not self._between_requests:
                _stop(self._headers_timer)
                self._headers_timer = None

        def send_400_response(self, msg: str) -> None:
            """Answer what is no HTTP, in the form of the protocol whose path or header it has."""
            answer = as_error(
                ApiError(400, f"request: must be HTTP 1.1, but is not: {msg}"),
                _scope_of(self._head),
            )
            body = bytes(answer.body)
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
                (b"connection", b"close"),
            ]
            response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
            events = (response, h11.Data(data=body), h11.EndOfMessage())
            self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))
            self.transport.close()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(write_timeout, self._cut_off)

        def resume_writing(self) -> None:
            _stop(self._write_timer)
            self._write_timer = None
            super().resume_writing()

        def _cut_off(self) -> None:
            # No lingering: otherwise the system would keep the unread bytes.
            linger_off = struct.pack("ii", 1, 0)
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger_off)
            self.transport.abort()

        @property
        def _between_requests(self) -> bool:
            return self.cycle is None or self.cycle.response_complete

        def _await_headers(self) -> None:
            self._headers_timer = self.loop.call_later(header_timeout, self._too_late)

        def _too_late(self) -> None:
            self._headers_timer = None
            if self._between_requests:
                self.transport.abort()

    return Connection


def _scope_of(head: bytes) -> dict[str, Any]:
    """Return the path and the headers of a request that may be no HTTP, as far as it has them."""
    line, *lines = head.split(b"\r\n")
    path = b" ".join(line.split(b" ")[1:2]).partition(b"?")[0]
    names = [(one.partition(b":")[0].strip().lower(), b"") for one in lines]
    return {"path": path.decode("latin-1"), "headers": names}


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
