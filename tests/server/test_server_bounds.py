"""Clients cannot harm a server, or each other."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers import command, failed
from server_process import ServerProcess, serving
from waits import HANGS_S, wait_until

LONG = {"prompt": "x = 1\n", "max_tokens": 900, "ignore_eos": True, "temperature": 1, "seed": 1}
#: More than sockets hold: however slow its reader is, it does not end before it has been read.
UNREAD = {**LONG, "stream": True, "n": 8, "logprobs": 100}
QUEUE = ("--max-seqs", "2", "--max-queue", "3", "--step-ms", "20")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("bounds"), "nano", *QUEUE) as running:
        yield running


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose patience is short, for clients that are slower than that."""
    args = ("--header-timeout", "0.4", "--body-timeout", "0.4", "--write-timeout", "0.4")
    with serving(tmp_path_factory.mktemp("impatient"), "nano", *args, *QUEUE) as running:
        yield running


def settled(server: ServerProcess) -> None:
    """Waits until the engine has no request any more."""
    wait_until(lambda: not server.running(), lambda: "requests of clients that left are there")


def ended(sock: socket.socket) -> bytes:
    """The bytes that arrive until the server closes the connection."""
    sock.settimeout(HANGS_S)
    data = b""
    try:
        while part := sock.recv(1 << 16):
            data += part
    except ConnectionResetError:
        pass
    return data


def post(path: str, body: object, length: int | None = None) -> bytes:
    """A request as bytes; length: what it says of its body."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {length or len(data)}\r\n\r\n".encode() + data


@pytest.mark.parametrize("sent", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nhost: a\r\nx"])
def test_slow_headers(impatient: ServerProcess, sent: bytes) -> None:
    """A connection without a request ends."""
    with impatient.raw() as sock:
        sock.sendall(sent)
        assert ended(sock) == b""


def test_slow_headers_of_a_second_request(impatient: ServerProcess) -> None:
    """Likewise; where this process was too late with the first one, it tries again."""
    health = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"

    def answered() -> bool:
        with impatient.raw() as sock:
            sock.sendall(health)
            if b"200 OK" not in (answer := sock.recv(1 << 16)):
                return False
            sock.sendall(b"GET /health HT")
            assert (answer + ended(sock)).endswith(b'{"status":"ok"}')
            return True

    wait_until(answered)


def test_slow_body(impatient: ServerProcess) -> None:
    """One that does not come is a 408."""
    with impatient.raw() as sock:
        sock.sendall(post("/v1/completions", {}, 500))
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_large_headers(server: ServerProcess) -> None:
    with server.raw() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\n" + b"a: " + b"b" * 40_000)
        assert ended(sock).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("phase", ["body", "queue", "decode"])
def test_disconnects(server: ServerProcess, phase: str, stream: bool) -> None:
    """Whoever leaves, and when: what was computed for them stops, and others do not notice."""
    expected = server.post("/v1/completions", **{**LONG, "max_tokens": 40}).json()["choices"]
    others = [server.raw() for _ in range(2)] if phase == "queue" else []
    for other in others:
        other.sendall(post("/v1/completions", {**LONG, "seed": 2}))
    with server.raw() as sock:
        whole = post("/v1/completions", {**LONG, "stream": stream})
        sock.sendall(whole[:-5] if phase == "body" else whole)
        if phase == "decode" and stream:
            assert b"data:" in sock.recv(1 << 16) + sock.recv(1 << 16)
        elif phase != "body":  # before it is seen it may have ended, on a busy machine
            ends = server.log.count("finish=")
            wait_until(lambda: server.running() > len(others) or server.log.count("finish=") > ends)
    for other in others:
        other.close()
    settled(server)
    again = server.post("/v1/completions", **{**LONG, "max_tokens": 40}).json()["choices"]
    assert again == expected


def test_clients_that_leave_at_once(server: ServerProcess) -> None:
    """Before their prompts are tokens: nothing is computed for them."""
    for seed in range(20):
        with server.raw() as sock:
            sock.sendall(post("/v1/completions", {**LONG, "seed": seed, "stream": seed % 2 == 0}))
    settled(server)
    assert not re.findall("tokens=900 .* finish=length", server.log)


def test_a_reader_that_does_not_read(impatient: ServerProcess) -> None:
    """It is cut off, and what it asked for ends."""
    with impatient.raw() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(post("/v1/completions", UNREAD))
        wait_until(lambda: "finish=cancelled" in impatient.log.splitlines()[-1])
        settled(impatient)
        assert not ended(sock).endswith(b"0\r\n\r\n")


def test_a_full_queue(server: ServerProcess) -> None:
    """429, with a time after which to come again; those in the queue are answered."""

    def asked_at_once() -> list[httpx.Response]:
        answers: list[httpx.Response] = []

        def ask() -> None:
            body = {**LONG, "max_tokens": 300}
            url = f"{server.url}/v1/completions"
            answers.append(httpx.post(url, json=body, timeout=HANGS_S))

        threads = [threading.Thread(target=ask) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 5
        texts = {a.json()["choices"][0]["text"] for a in answers if a.status_code == 200}
        assert len(texts) == 1
        return [answer for answer in answers if answer.status_code == 429]

    # On a busy machine some may come when others have been answered.
    refused = wait_until(asked_at_once)[0]
    assert int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["code"] == "queue_full"


def test_cancel_by_id(server: ServerProcess) -> None:
    """DELETE ends a request of the same key, and of no other id."""
    with server.http.stream("POST", "/v1/completions", json=UNREAD) as answer:
        lines = answer.iter_lines()
        id = json.loads(next(lines).removeprefix("data: "))["id"]
        listed = server.http.get("/v1/requests").json()["data"]
        assert [one["id"] for one in listed] == [id]
        assert server.http.delete("/v1/requests/cmpl-other").status_code == 404
        assert server.http.delete(f"/v1/requests/{id}").json() == {"id": id, "cancelled": True}
        assert "".join(lines).count('"finish_reason":"cancelled"') == 8
    settled(server)


def test_deadline(server: ServerProcess) -> None:
    answer = server.post("/v1/completions", **LONG, n=2, timeout=0.1).json()
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"deadline"}


def test_keys(tmp_path: Path) -> None:
    """Every path but /health and the page asks for one; the file is read again."""
    file = tmp_path / "keys"
    file.write_text("# people\nann sesame\nplain\n")
    with serving(tmp_path, "nano", "--api-key-file", str(file), "--max-per-key", "1") as server:
        get = server.http.get

        def status(key: str) -> int:
            return get("/v1/models", headers={"authorization": f"Bearer {key}"}).status_code

        assert get("/health").status_code == 200
        assert get("/v1/models").status_code == 401
        assert get("/metrics").status_code == 401
        assert get("/v1/models").json()["error"]["code"] == "invalid_api_key"
        assert [status(key) for key in ("sesame", "plain", "ann", "x", "sesam")] == [
            200, 200, 401, 401, 401,
        ]  # fmt: skip
        assert get("/v1/models", headers={"x-api-key": "sesame"}).status_code == 200
        assert "key=ann" in server.log
        assert "sesame" not in server.log
        ann, other = ({"authorization": f"Bearer {key}"} for key in ("sesame", "plain"))
        with server.http.stream("POST", "/v1/completions", json=UNREAD, headers=ann) as answer:
            lines = answer.iter_lines()  # which, forgotten, would close the connection
            id = json.loads(next(lines).removeprefix("data: "))["id"]
            second = server.http.post("/v1/completions", json=UNREAD, headers=ann)
            assert second.json()["error"]["code"] == "key_limit"
            assert server.http.delete(f"/v1/requests/{id}", headers=other).status_code == 404
            assert get("/v1/requests", headers=other).json()["data"] == []
        file.write_text("ann another\n")
        os.utime(file, (1, 1))
        wait_until(lambda: status("another") == 200)
        assert status("sesame") == 401


@pytest.mark.parametrize("signals", [1, 2])
def test_sigterm(tmp_path: Path, signals: int) -> None:
    """Running answers end whole and nothing new begins; a second signal cuts between events."""
    body = {**UNREAD, "n": 2}
    with serving(tmp_path, "nano", "--shutdown-timeout", f"{HANGS_S}") as server:
        with server.http.stream("POST", "/v1/completions", json=body) as answer:
            parts = answer.iter_bytes()
            data = bytearray(next(parts))
            server.signal(signal.SIGTERM)
            wait_until(lambda: server.http.get("/health").status_code != 200)
            health = server.http.get("/health")
            assert (health.status_code, health.json()) == (503, {"status": "shutting down"})
            assert server.post("/v1/completions", prompt="a").status_code == 503
            if signals == 2:
                server.signal(signal.SIGTERM)
            try:
                for part in parts:
                    data += part
            except httpx.RemoteProtocolError:
                assert signals == 2
        assert data.endswith(b"\n\n")
        assert data.endswith(b"data: [DONE]\n\n") == (signals == 1)
        assert server.wait() == (0 if signals == 1 else 143)


def test_drain_has_an_end(tmp_path: Path) -> None:
    """A stream that is not complete in time gets an error as its last event."""
    with serving(tmp_path, "nano", "--shutdown-timeout", "0.1") as server:
        with server.http.stream("POST", "/v1/completions", json=UNREAD) as answer:
            parts = answer.iter_text()
            text = next(parts)
            server.signal()
            text += "".join(parts)
        (last,) = re.findall(r"\n\ndata: (\{\"error.*\})\n\n$", text)
        assert json.loads(last)["error"]["code"] == "shutting_down"
        assert server.wait() == 143


def test_settings_that_disagree(tmp_path: Path) -> None:
    """One line, before anything is loaded."""
    failed(command("serve", "--host", "0.0.0.0"), "host: must be this machine's own", "--api-key")
    failed(command("serve", "a", "b", "--served-name", "x"), "served-name")
    failed(command("serve", "--max-body", "many"), "must be bytes")
    failed(command("serve", "--keep-alive", "0"), "must be a duration")
    failed(command("serve", "--api-key-file", str(tmp_path / "none")), "none")
    failed(command("serve", str(tmp_path / "none"), "--port", "0"), "none")


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        failed(command("serve", "nano", "--port", str(port)), "port: must be free", str(port))


def test_sockets_that_are_none(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as file, socket.socket() as silent:
        failed(command("serve", "nano", "--fd", str(file.fileno())), "fd: must be a socket")
        failed(command("serve", "nano", "--fd", str(silent.fileno())), "must be a listening socket")


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sterna.cli.serve.NEEDED", ("starlette", "none_such"))
    failed(command("serve"), "none_such", "pip install 'sterna[server]'")


def test_sigterm_while_loading(tmp_path: Path) -> None:
    """It is obeyed at once, whatever loading is doing; meanwhile /health says what is going on.

    The socket comes from outside, as from systemd: clients that connect early get answers, too.
    """
    slow = tmp_path / "slow.py"
    slow.write_text(
        "import sys, time, sterna.cli.serve as serve\n"
        "serve.open_model = lambda options: time.sleep(600)\n"
        "from sterna.cli import main\nmain(sys.argv[1:])\n"
    )
    log = tmp_path / "log"
    with socket.create_server(("127.0.0.1", 0)) as given:
        client = socket.create_connection(given.getsockname(), HANGS_S)
        client.sendall(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        with log.open("w") as out:
            process = subprocess.Popen(
                [sys.executable, str(slow), "serve", "nano", "--fd", str(given.fileno())],
                stderr=out, pass_fds=[given.fileno()],
            )  # fmt: skip
        try:
            said = ended(client)
            assert said.startswith(b"HTTP/1.1 503")
            assert said.endswith(b'{"status":"loading"}')
            assert f":{given.getsockname()[1]}\n" in log.read_text()
            process.terminate()
            assert process.wait(HANGS_S) == 143
        finally:
            process.kill()
            client.close()
