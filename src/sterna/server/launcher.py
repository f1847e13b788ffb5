"""The server process: listens, loads, drains at SIGTERM, and ends at once at a second one."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Generator, Mapping
from types import FrameType
from typing import Any

import uvicorn

from sterna.errors import RequestError
from sterna.files.system import handling_signals
from sterna.server.app import create_app
from sterna.server.connection import MAX_HEADER_BYTES, connection_class
from sterna.server.logs import log_to_stderr
from sterna.server.model_manager import ModelManager, ModelSource
from sterna.server.service import Service
from sterna.server.settings import Settings

__all__ = ["serve"]

_log = logging.getLogger("sterna.server")
KEEP_ALIVE_S = 15  #: how long an idle connection stays open
POLL_S = 0.05
#: Time for clients to read the last event of an answer that was cut off.
FLUSH_S = 1


def serve(settings: Settings, sources: Mapping[str, ModelSource]) -> int:
    """Serve models until a signal, and return the exit code.

    sources: models by name, the default first. The exit code is 0 if all requests were answered,
    128 + the signal's number if some were cut off. Raises what loading the first model raises, and
    RequestError if the address cannot be listened on.
    """
    log_to_stderr(settings.log_format)
    return asyncio.run(_serve(settings, sources))


async def _serve(settings: Settings, sources: Mapping[str, ModelSource]) -> int:
    models = ModelManager(sources, settings.engine, settings.keep_alive, settings.max_loaded)
    service = Service(settings, models)
    server = _Server(_config(settings, service), service)
    await server.serve()
    if server.force_exit:
        # Threads may be in a step or loading, and Python's own exit would wait for them or crash.
        sys.stderr.flush()
        os._exit(server.exit_code)
    if service.load_error is not None:
        raise service.load_error
    return server.exit_code


def _config(settings: Settings, service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        host=settings.host,
        port=settings.port,
        http=connection_class(settings.header_timeout, settings.write_timeout),
        ws="none",
        loop="asyncio",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )


class _Server(uvicorn.Server):
    """uvicorn's server, but it still listens while it drains.

    So /health reports the state, and clients get an error instead of a refused connection.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service
        self._drain: asyncio.Task[None] | None = None
        self.exit_code = 0

    async def startup(self, sockets: list[object] | None = None) -> None:  # type: ignore[override]
        """Listen. RequestError, instead of uvicorn's exit, if the port is taken."""
        settings = self._service.settings
        own_sockets: Any = None if settings.fd is None else [settings.listener()]
        try:
            await super().startup(own_sockets)
        except SystemExit:
            raise RequestError(
                f"port: must be free, but {settings.host}:{settings.port} is not; choose another "
                "with --port"
            ) from None
        scheme = "https" if self.config.ssl else "http"
        name = self.servers[0].sockets[0].getsockname()
        if isinstance(name, tuple):
            host, port = name[:2]
            name = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        _log.info("listening on %s://%s", scheme, name)

    async def main_loop(self) -> None:
        """Wait for a signal, or for the first model to fail to load."""
        ready = False
        while not self.should_exit:
            await self.on_tick(0)
            if self._service.load_error is not None:
                return
            if not ready and not self._service.loading:
                ready = True
                _log.info("ready: %s", ", ".join(self._service.models.names))
            await asyncio.sleep(POLL_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle SIGTERM and SIGINT until the server has ended."""
        with handling_signals(self.handle_exit):
            yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second."""
        if self._drain is None and not self._service.loading:
            self._service.limits.draining = True
            self._drain = asyncio.get_running_loop().create_task(self._drained(sig))
            return
        self.exit_code = 128 + sig
        self.force_exit = self.should_exit = True

    async def _drained(self, sig: int) -> None:
        """Let requests end within the shutdown timeout, then cut the others off between events."""
        active, limit = self._service.active, self._service.settings.shutdown_timeout
        if self._service.batches is not None:
            await self._service.batches.stop()
        _log.info("draining: %d requests have %g s to finish", len(active), limit)
        until = asyncio.get_running_loop().time() + limit
        while active and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(POLL_S)
        if active:
            self.exit_code = 128 + sig
            for one in list(active.values()):
                one.shut_down()
            await asyncio.sleep(POLL_S)
        self.should_exit = True
