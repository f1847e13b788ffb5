"""ollama's keep_alive, by the package itself: 0 unloads a model, other durations are accepted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from server_process import ServerProcess, serving

from sterna.server.errors import ApiError
from sterna.server.keep_alive import unloads

SAID = [{"role": "user", "content": "def f(x):"}]
OPTIONS = {"num_predict": 4, "temperature": 0}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("log"), "nano") as running:
        yield running


@pytest.fixture
def client(server: ServerProcess) -> Any:
    return pytest.importorskip("ollama").Client(host=server.url)


def loaded(client: Any, wanted: bool) -> bool:
    """Whether a model is in memory, soon: it leaves after the answer has been sent."""
    until = time.monotonic() + 10
    while bool(client.ps().models) != wanted and time.monotonic() < until:
        time.sleep(0.02)
    return bool(client.ps().models)


def test_after_the_request(client: Any) -> None:
    """Of both endpoints, whole and streamed; the next request loads the model again."""
    first = client.chat("nano", SAID, options=OPTIONS, keep_alive=0)
    assert not loaded(client, False)
    again = client.chat("nano", SAID, options=OPTIONS, keep_alive="5m")
    assert again.message.content == first.message.content
    assert again.load_duration > 0
    assert loaded(client, True)
    pieces = client.generate("nano", "a", options=OPTIONS, keep_alive="0s", stream=True)
    assert list(pieces)[-1].done_reason in ("length", "stop")
    assert not loaded(client, False)
    for keep in (300, "1h30m", -1, "-1m", 0.5, "0.5", None):
        client.generate("nano", "a", options=OPTIONS, keep_alive=keep)
        assert loaded(client, True), keep


def test_at_once(client: Any, server: ServerProcess) -> None:
    """Without a prompt, which loads a model otherwise; by the package's and by raw requests."""
    assert client.generate("nano", "").done_reason == "load"
    assert loaded(client, True)
    done = client.generate("nano", "", keep_alive=0)
    assert (done.done, done.done_reason, done.response) == (True, "unload", "")
    assert client.ps().models == []
    assert client.generate("nano", "", keep_alive=0).done_reason == "unload"
    assert client.chat("nano", [], keep_alive="10m").done_reason == "load"
    body = {"model": "nano:latest", "messages": [], "keep_alive": 0}
    answer = server.post("/api/chat", **body).json()
    assert answer["done_reason"] == "unload"
    assert answer["message"] == {"role": "assistant", "content": ""}
    assert client.ps().models == []
    other = server.post("/api/generate", model="other", keep_alive=0)
    assert other.status_code == 404
    assert server.post("/api/generate", model="nano", keep_alive="soon").status_code == 400


def test_others_are_answered(client: Any, server: ServerProcess) -> None:
    """A model that answers another request leaves after it."""
    body = {"model": "nano", "prompt": ["a"] * 4, "max_tokens": 400, "ignore_eos": True}
    with server.http.stream("POST", "/v1/completions", json={**body, "stream": True}) as told:
        lines = told.iter_lines()
        next(lines)
        assert client.generate("nano", "", keep_alive=0).done_reason == "unload"
        assert len(client.ps().models) == 1
        assert "[DONE]" in "".join(lines)
    assert not loaded(client, False)


def test_durations() -> None:
    """Go's and numbers; what is neither is an error."""
    for zero in (0, 0.0, "0", "0s", "0m0s", "-0s", "00"):
        assert unloads(zero), zero
    for other in (None, 1, -1, "1ns", "1h1m1s", "-5m", "300", ".5s", "1.5h"):
        assert not unloads(other), other
    for wrong in ("", "m", True, [], {}, "5 m", "1m2", "9" * 400, "--5m"):
        with pytest.raises(ApiError):
            unloads(wrong)
