"""Connections with timeouts for slow clients. uvicorn's own wait without a limit."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

from uvicorn.protocols.http.h11_impl import H11Protocol

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
            if self._between_requests and self._headers_timer is None:
                self._await_headers()
            super().data_received(data)
            if not self._between_requests:
                _stop(self._headers_timer)
                self._headers_timer = None

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


def _stop(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
