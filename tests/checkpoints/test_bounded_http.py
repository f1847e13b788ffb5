"""Answers of a server have an end: in time, in size and in redirections."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from helpers import failure
from hub_helpers import REPO, local_hub, pull
from hub_server import Hub
from huggingface_hub import constants
from waits import wait_until

from sterna.checkpoints import hub
from sterna.checkpoints.hub import HubName, bounded_http, transfer
from sterna.checkpoints.hub import listing as listings
from sterna.errors import HubError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
FAILED = b"HTTP/1.1 500 No\r\nContent-Type: application/json\r\n\r\n"


class Rude:
    """A server on loopback that answers as it is told, and counts requests."""

    def __init__(self, say: Callable[[socket.socket, str], None]) -> None:
        self.asked: list[str] = []
        self._say, self._listening = say, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.over = threading.Event()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listening.accept()[0]
            except OSError:  # closed
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = connection.recv(65536)
                    if not part:
                        return
                    head += part
                path = head.split()[1].decode()
                self.asked.append(path)
                self._say(connection, path)
            except OSError:  # the client has had enough
                return

    def close(self) -> None:
        self.over.set()
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join()


@pytest.fixture
def rude(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., Rude]]:
    """Makes the Hub a server that is rude."""
    made: list[Rude] = []

    def make(say: Callable[[socket.socket, str], None]) -> Rude:
        made.append(Rude(say))
        monkeypatch.setattr(constants, "ENDPOINT", made[-1].url)
        return made[-1]

    with local_hub(monkeypatch, tmp_path):
        monkeypatch.setattr(bounded_http, "MAX_BODY_BYTES", 1 << 20)
        yield make
        huggingface_hub.close_session()
        for server in made:
            server.close()


def _endless(head: bytes) -> Callable[[socket.socket, str], None]:
    def say(connection: socket.socket, _: str) -> None:
        connection.sendall(head)
        while True:  # until the client closes
            connection.sendall(b"[" * 65536)

    return say


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, rude: Callable[..., Rude]) -> Callable[..., Rude]:
    """Likewise; no request waits long for its bytes."""
    monkeypatch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    return rude


def test_a_server_that_accepts_and_never_answers(impatient: Callable[..., Rude]) -> None:
    server = impatient(lambda connection, _: server.over.wait())
    failure(pull, HubError, "must be reachable")
    wait_until(lambda: server.asked)
    assert len(server.asked) == 1


def test_a_listing_that_stops_in_the_middle(impatient: Callable[..., Rude]) -> None:
    def say(connection: socket.socket, _: str) -> None:
        connection.sendall(HEAD + b'{"sha": ')
        server.over.wait()

    server = impatient(say)
    failure(pull, HubError, "must be reachable")


def test_a_listing_without_end(rude: Callable[..., Rude]) -> None:
    rude(_endless(HEAD))
    failure(pull, HubError, "at most 1,048,576 bytes")


def test_an_error_without_end(rude: Callable[..., Rude]) -> None:
    """Its body is not asked for."""
    rude(_endless(FAILED))
    failure(pull, HubError, "HTTP 500")


def test_a_listing_that_takes_too_long(
    rude: Callable[..., Rude], monkeypatch: pytest.MonkeyPatch
) -> None:
    rude(_endless(HEAD))
    monkeypatch.setattr(bounded_http, "MAX_BODY_S", -1.0)  # over before it begins
    failure(pull, HubError, "bytes in -1 s")


REDIRECTS = [
    ("ftp://127.0.0.1/x", "to the scheme ftp"),
    ("file:///etc/passwd", "to the scheme file"),
    ("/again", "in a circle"),
    ("/on/{}", "more than 10 times"),
]


def _redirecting(target: str) -> Callable[[socket.socket, str], None]:
    def say(connection: socket.socket, path: str) -> None:
        number = int(path.rpartition("/")[2]) if path.startswith("/on/") else 0
        where = target.format(number + 1)
        text = f"HTTP/1.1 302 Found\r\nLocation: {where}\r\nContent-Length: 0\r\n\r\n"
        connection.sendall(text.encode())

    return say


@pytest.mark.parametrize(("target", "words"), REDIRECTS)
def test_redirections_of_a_listing(rude: Callable[..., Rude], target: str, words: str) -> None:
    server = rude(_redirecting(target))
    failure(pull, HubError, words)
    assert len(server.asked) == len(set(server.asked)) <= 11


@pytest.mark.parametrize(("target", "words"), REDIRECTS)
def test_redirections_of_a_file_are_final(
    server: Hub, monkeypatch: pytest.MonkeyPatch, target: str, words: str
) -> None:
    """At once: nothing is tried again."""
    elsewhere = Rude(_redirecting(target))

    def waited(_: float) -> None:
        raise AssertionError("waits for another attempt")

    monkeypatch.setattr(transfer.time, "sleep", waited)
    try:
        server.redirect = elsewhere.url
        failure(pull, HubError, words)
    finally:
        huggingface_hub.close_session()
        elsewhere.close()


def test_a_downgrade_is_refused() -> None:
    """A token and a signed address are not for everyone on the way."""
    httpx: Any = pytest.importorskip("httpx2" if _is_2() else "httpx")

    def handle(request: Any) -> Any:
        return httpx.Response(302, headers={"Location": "http://hub.example/x"})

    with _session(httpx.Client(transport=httpx.MockTransport(handle))):
        failure(lambda: _get("https://hub.example/x"), HubError, "from https to http")


def test_a_trickle_is_cut(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is made up: each piece comes a minute after the one before."""
    now = 0.0

    class Clock:
        @staticmethod
        def monotonic() -> float:
            nonlocal now
            now += 61
            return now

    listing = listings.listing_of(HubName(REPO))
    monkeypatch.setattr(hub, "listing_of", lambda _: listing)
    monkeypatch.setattr(bounded_http, "time", Clock)
    monkeypatch.setattr(bounded_http, "SLOW_BYTES", 1 << 40)
    error = failure(pull, HubError, "bytes in 60 s")
    assert "pull again" in error
    monkeypatch.setattr(bounded_http, "SLOW_BYTES", 0)
    assert pull(REPO).is_whole()


def _is_2() -> bool:
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__mro__[1].__module__.startswith("httpx2")


@contextmanager
def _session(client: Any) -> Iterator[None]:
    from huggingface_hub.utils import _http

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_http, "_GLOBAL_CLIENT", client)
        yield


def _get(url: str) -> None:
    with bounded_http.answer(url, {}):
        pass
