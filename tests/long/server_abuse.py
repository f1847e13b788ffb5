"""Many clients that leave, that are slow, or that the server leaves; see README.md."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from server_process import ServerProcess, serving

ROUNDS = int(os.environ.get("STERNA_ROUNDS", "1000"))
BODY = {"prompt": "x = 1\n", "max_tokens": 400, "ignore_eos": True, "temperature": 1, "seed": 1}
#: Bytes for keys and values; beyond them, and a twentieth, a server takes what connections need.
CACHE = 64_000_000
#: The most of an open stream: its connection, its request, what waits to be sent.
STREAM_BYTES = 32_000
OPTIONS = ("--cache-ram", str(CACHE), "--max-queue", "5000", "--max-wait", "1h")


def post(body: object) -> bytes:
    data = json.dumps(body).encode()
    head = "POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


class Health:
    """Asks /health again and again, and keeps how long each answer took, in seconds."""

    def __init__(self, server: ServerProcess) -> None:
        self._url, self.took = f"{server.url}/health", [0.0]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask)

    def __enter__(self) -> Health:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _ask(self) -> None:
        with httpx.Client(timeout=60) as client:
            while not self._over.wait(0.02):
                began = time.perf_counter()
                assert client.get(self._url).status_code == 200
                self.took.append(time.perf_counter() - began)

    @property
    def p99(self) -> float:
        return sorted(self.took)[int(0.99 * len(self.took))]


def pages(server: ServerProcess) -> float:
    text = server.http.get("/metrics").text
    (line,) = [x for x in text.splitlines() if x.startswith("sterna_kv_cache_usage_ratio{")]
    return float(line.split()[-1])


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path, "nano", *OPTIONS, "--header-timeout", "3") as running:
        yield running


def settle(server: ServerProcess) -> float:
    """Seconds until no request runs or waits, and none has pages."""
    began = time.monotonic()
    while server.running() or pages(server):
        assert time.monotonic() - began < 60
        time.sleep(0.02)
    return time.monotonic() - began


def test_clients_that_leave(server: ServerProcess) -> None:
    """At any byte of the request, in the queue, in the answer: all is given back."""
    expected = server.post("/v1/completions", **BODY).json()["choices"][0]["text"]
    before, memory = pages(server), psutil.Process(server.process.pid).memory_info().rss
    rng = random.Random(1)
    others: list[str] = []

    def stay() -> None:
        others.append(
            httpx.post(f"{server.url}/v1/completions", json=BODY, timeout=600).json()["choices"][0][
                "text"
            ]
        )

    def leave(seed: int) -> None:
        rng = random.Random(seed)
        data = post(
            {**BODY, "seed": seed, "stream": rng.random() < 0.5, "n": rng.choice((1, 1, 3))}
        )
        with server.raw() as sock:
            sock.sendall(data[: rng.choice((rng.randrange(len(data)), len(data), len(data)))])
            time.sleep(rng.random() ** 3 * 0.5)

    with Health(server) as health:
        staying = threading.Thread(target=stay)
        for begin in range(0, ROUNDS, 50):
            if not staying.is_alive():
                staying = threading.Thread(target=stay)
                staying.start()
            threads = [
                threading.Thread(target=leave, args=(rng.randrange(1 << 30),))
                for _ in range(begin, min(begin + 50, ROUNDS))
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        staying.join()
        took = settle(server)
    after = psutil.Process(server.process.pid).memory_info().rss
    print(
        f"\n{ROUNDS} disconnects: settled {took:.2f} s after the last; /health p99 "
        f"{health.p99 * 1e3:.0f} ms of {len(health.took)}; memory {memory >> 20} MB before, "
        f"{after >> 20} after; {len(others)} others beside them; pages {before} -> {pages(server)}"
    )
    assert after - memory <= 1.05 * CACHE + 50 * STREAM_BYTES
    assert set(others) == {expected}
    assert "Traceback" not in server.log


def test_slow_clients(server: ServerProcess) -> None:
    """Each sends a byte of its headers a second: others are served, and all are ended."""
    expected = server.post("/v1/completions", **BODY).json()["choices"][0]["text"]
    socks: list[socket.socket] = [server.raw() for _ in range(ROUNDS)]
    began = time.monotonic()
    with Health(server) as health:
        while time.monotonic() - began < 6:
            for sock in socks:
                try:
                    sock.send(b"G")
                except OSError:
                    continue
            same = server.post("/v1/completions", **BODY).json()["choices"][0]["text"] == expected
            assert same
            time.sleep(0.5)
    ended = 0
    for sock in socks:
        sock.settimeout(1)
        try:
            ended += sock.recv(1) == b""
        except ConnectionError:
            ended += 1
        sock.close()
    print(f"\n{ROUNDS} slow clients: {ended} ended; /health p99 {health.p99 * 1e3:.0f} ms")
    assert ended == ROUNDS
    assert "Traceback" not in server.log


def test_open_streams(tmp_path: Path) -> None:
    """As many streams at once: each is answered as alone, and all is given back."""
    with serving(tmp_path, "nano", *OPTIONS) as server:
        body = {**BODY, "max_tokens": 100}
        alone = [
            server.post("/v1/completions", **{**body, "seed": seed}).json()["choices"][0]["text"]
            for seed in range(8)
        ]
        process = psutil.Process(server.process.pid)
        memory, used = process.memory_info().rss, pages(server)
        texts: list[str] = [""] * ROUNDS
        most = [memory]

        async def one(i: int) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(post({**body, "seed": i % 8, "stream": True}))
            data = bytearray()
            while part := await reader.readuntil(b"\n\n"):
                data += part
                if b"[DONE]" in part:
                    break
            writer.close()
            events = [line[6:] for line in data.decode().splitlines() if line.startswith("data: {")]
            choices = (json.loads(event)["choices"][0] for event in events)
            texts[i] = "".join(choice["text"] for choice in choices)
            most.append(process.memory_info().rss)

        async def all_of_them() -> None:
            await asyncio.gather(*(one(i) for i in range(ROUNDS)))

        began = time.monotonic()
        with Health(server) as health:
            asyncio.run(all_of_them())
        took = time.monotonic() - began
        settle(server)
        print(
            f"\n{ROUNDS} streams at once: {took:.0f} s; /health p99 {health.p99 * 1e3:.0f} ms of "
            f"{len(health.took)}; memory {memory >> 20} MB before, {max(most) >> 20} at most, "
            f"{process.memory_info().rss >> 20} after; pages {used} -> {pages(server)}"
        )
        assert texts == [alone[i % 8] for i in range(ROUNDS)]
        assert max(most) - memory <= 1.05 * CACHE + ROUNDS * STREAM_BYTES
        assert "Traceback" not in server.log


def test_sigterm_under_load(tmp_path: Path) -> None:
    """No answer ends within an event, whenever the signal comes."""
    codes: list[int] = []
    rounds = max(1, ROUNDS // 5)
    cut = 0
    for i in range(rounds):
        rng = random.Random(i)
        limit = rng.choice(("0.05", "5"))
        with serving(tmp_path, "nano", "--shutdown-timeout", limit) as server:
            socks = [server.raw() for _ in range(6)]
            for seed, sock in enumerate(socks):
                sock.sendall(post({**BODY, "seed": seed, "stream": True}))
            time.sleep(rng.random() * 0.3)
            server.signal(signal.SIGTERM)
            for sock in socks:
                sock.settimeout(30)
                data = b""
                try:
                    while part := sock.recv(1 << 16):
                        data += part
                except ConnectionResetError:
                    pass
                if b"text/event-stream" in data:
                    # Each event is a chunk of its own: a whole body ends with the empty one.
                    assert data.endswith(b"\r\n0\r\n\r\n"), data[-300:]
                    cut += b"[DONE]" not in data
                else:
                    assert data == b"" or b" 503 " in data.split(b"\r\n")[0], data[:200]
            codes.append(server.wait())
            assert "Traceback" not in server.log, server.log
    print(f"\n{rounds} SIGTERMs: exit codes {sorted(set(codes))}, {cut} answers cut between events")
    assert set(codes) <= {0, 143}
