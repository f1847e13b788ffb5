"""A connection that ends where its client is too slow: uvicorn's own waits for ever."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct

from uvicorn.protocols.http.h11_impl import H11Protocol

__all__ = ["MAX_HEADER_BYTES", "connection_class"]

MAX_HEADER_BYTES = 32 << 10
#: What may wait in our own memory for a reader; as much again waits in the system's buffers.
WRITE_BUFFER_BYTES = 64 << 10


def connection_class(header_timeout: float, write_timeout: float) -> type[H11Protocol]:
    """The protocol of a server's connections.

    header_timeout: seconds from the connection, or from the first byte of a later request, to the
    end of a request's headers. write_timeout: seconds in which a reader must take what waits for
    it; one that does not is cut off, and its request ends as with any other disconnect.
    """

    class Connection(H11Protocol):
        _headers_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            # Each of a thousand bad clients would have a line of uvicorn's own log.
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
            # At once: else the system would keep what was written for as long as nobody reads it.
            at_once = struct.pack("ii", 1, 0)
            sock = self.transport.get_extra_info("socket")
            if sock is not None:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
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
