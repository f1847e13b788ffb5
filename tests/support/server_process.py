"""`sterna serve` as a user starts it: a process on a free port of 127.0.0.1, with a client."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from waits import HANGS_S, wait_until

THREADS = os.environ.get("STERNA_THREADS", "1")


class ServerProcess:
    """A running server; `log` has its lines so far."""

    def __init__(self, process: subprocess.Popen[str], log: Path, port: int) -> None:
        self.process, self._log, self.port = process, log, port
        self.url = f"http://127.0.0.1:{port}"
        self.http = httpx.Client(base_url=self.url, timeout=HANGS_S)

    @property
    def log(self) -> str:
        return self._log.read_text()

    def post(self, path: str, **body: object) -> httpx.Response:
        return self.http.post(path, json=body)

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(HANGS_S)

    def raw(self) -> socket.socket:
        """A connection to write what no client would."""
        return socket.create_connection(("127.0.0.1", self.port), HANGS_S)

    def running(self) -> int:
        """Requests that the engine has, running or waiting."""
        text = self.http.get("/metrics").text
        found = re.findall(r"^sterna_num_requests_\w+\{.*\} (\S+)$", text, re.MULTILINE)
        return sum(int(float(value)) for value in found)


@contextmanager
def serving(folder: Path, *args: str, **variables: str) -> Iterator[ServerProcess]:
    """A server of `nano`, or of the models that the arguments name, until the block ends."""
    log = folder / "server.log"
    with log.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sterna", "serve", "--port", "0", "--threads", THREADS, *args],
            stderr=out, text=True, env={**os.environ, **variables},
        )  # fmt: skip
    try:

        def ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "ready:" in log.read_text()

        wait_until(ready, log.read_text)
        text = log.read_text()
        (port,) = re.findall(r"listening on \w+://[\w.]+:(\d+)", text)
        yield ServerProcess(process, log, int(port))
    finally:
        process.kill()
        process.wait()
