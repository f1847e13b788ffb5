"""Files and batches: results are those of the same requests alone, whatever happens meanwhile."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from server_process import ServerProcess, serving
from waits import wait_until

KEYS = ("--api-key", "one", "--api-key", "two")
LONG = {"prompt": "x = 1\n", "max_tokens": 900, "ignore_eos": True, "temperature": 1, "seed": 1}


def client_of(server: ServerProcess, key: str = "one") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("batches")
    limits = ("--files-max", "300K")
    with serving(folder, "nano", "--files", str(folder / "files"), *limits, *KEYS) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return client_of(server)


def line(custom_id: str, body: Any, url: str = "/v1/completions") -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": body}


def upload(client: openai.OpenAI, *lines: Any) -> str:
    data = "".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines)
    return client.files.create(file=("in.jsonl", data.encode()), purpose="batch").id


def begin(
    client: openai.OpenAI, *lines: Any, window: str = "24h", url: str = "/v1/completions"
) -> Any:
    given: Any = {"endpoint": url, "completion_window": window}
    return client.batches.create(input_file_id=upload(client, *lines), **given)


def until(client: openai.OpenAI, id: str, good: Callable[[Any], bool]) -> Any:
    found: list[Any] = []

    def is_good() -> bool:
        found[:] = [client.batches.retrieve(id)]
        return good(found[0])

    wait_until(is_good, lambda: found)
    return found[0]


def ended(client: openai.OpenAI, id: str) -> Any:
    ends = ("completed", "failed", "expired", "cancelled")
    return until(client, id, lambda batch: batch.status in ends)


def rows(client: openai.OpenAI, file: str | None) -> list[Any]:
    if file is None:
        return []
    return [json.loads(one) for one in client.files.content(file).text.splitlines()]


def test_results_are_the_answers(server: ServerProcess, client: openai.OpenAI) -> None:
    """In the order of the lines, errors in a file of their own; whatever the endpoint."""
    bodies: dict[str, Any] = {
        "/v1/completions": {"prompt": "a = 1\n", "max_tokens": 8},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 8},
        "/v1/responses": {"input": "a", "max_output_tokens": 8},
        "/v1/embeddings": {"input": "a", "pooling": "mean"},
        "/v1/decide": {"context": "a", "question": ["Is it b?", "Or c?"]},
    }
    auth = {"authorization": "Bearer one"}
    for url, body in bodies.items():
        sampled = {} if "embeddings" in url or "decide" in url else {"temperature": 1}
        seeds: Any = [{**sampled, **({"seed": i} if sampled else {})} for i in range(12)]
        seeds[5] = {next(iter(body)): 1}
        lines = [line(f"r{i}", {**body, **seed}, url) for i, seed in enumerate(seeds)]
        batch = ended(client, begin(client, *lines, url=url).id)
        assert batch.status == "completed", batch
        assert batch.request_counts.model_dump() == {"total": 12, "completed": 11, "failed": 1}
        found = rows(client, batch.output_file_id)
        assert [row["custom_id"] for row in found] == [f"r{i}" for i in range(12) if i != 5]
        alone = server.http.post(url, json=lines[7]["body"], headers=auth).json()
        answer = found[6]["response"]
        assert answer["status_code"] == 200
        for name in ("choices", "data", "receipt"):
            assert answer["body"].get(name) == alone.get(name)
        (wrong,) = rows(client, batch.error_file_id)
        assert (wrong["custom_id"], wrong["response"]["status_code"]) == ("r5", 400)
        assert wrong["response"]["body"]["error"]["param"] == next(iter(body))


def test_files(server: ServerProcess, client: openai.OpenAI) -> None:
    """Listed page by page, read, deleted; another key knows nothing of them."""
    ids = [upload(client, line(str(i), {})) for i in range(5)]
    assert [f.id for f in client.files.list(limit=2, purpose="batch")][:5] == ids[::-1]
    first = client.files.list(limit=3, order="asc", after=ids[0])
    assert [f.id for f in first.data] == ids[1:4]
    assert client.files.content(ids[0]).text == json.dumps(line("0", {})) + "\n"
    other = client_of(server, "two")
    assert other.files.list().data == []
    for ask in (other.files.retrieve, other.files.delete, other.files.content):
        with pytest.raises(openai.NotFoundError):
            ask(ids[0])
    with pytest.raises(openai.NotFoundError):
        other.batches.create(
            input_file_id=ids[0], endpoint="/v1/completions", completion_window="24h"
        )
    for id in ids:
        assert client.files.delete(id).deleted
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(ids[0])


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"data": {"purpose": "batch"}, "files": {"file": b"x" * 400_000}}, 413),
        ({"data": {"purpose": "fine-tune"}, "files": {"file": b"{}"}}, 400),
        ({"data": {"purpose": "batch"}, "files": {"other": b"{}"}}, 400),
        ({"data": {"purpose": "batch", "file": "x"}, "files": {"a": b"{}"}}, 400),
        ({"data": {"purpose": "batch"}, "files": [("file", b"a"), ("file", b"b")]}, 400),
        ({"data": {"purpose": "x" * 5000}, "files": {"file": b"{}"}}, 400),
        ({"json": {"purpose": "batch"}}, 400),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400),
        ({"content": b"--b\r\nx", "headers": {"content-type": "multipart/form-data; boundary=b"}},
         400),
    ],
)  # fmt: skip
def test_forms_that_are_refused(server: ServerProcess, sent: Any, status: int) -> None:
    headers = {"authorization": "Bearer one", **sent.pop("headers", {})}
    answer = server.http.post("/v1/files", headers=headers, **sent)
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["message"]


def test_a_slow_upload(tmp_path: Path) -> None:
    args = ("--files", str(tmp_path / "files"), "--body-timeout", "0.2", *KEYS)
    with serving(tmp_path, "nano", *args) as server, server.raw() as sock:
        head = "POST /v1/files HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer one\r\n"
        head += "content-type: multipart/form-data; boundary=b\r\ncontent-length: 100\r\n\r\n--b"
        sock.sendall(head.encode())
        assert sock.recv(1 << 16).startswith(b"HTTP/1.1 408")


def test_lines_that_are_wrong(client: openai.OpenAI) -> None:
    """All of a file is checked before any of it runs."""
    good = line("a", {"prompt": "a"})
    batch = ended(
        client,
        begin(
            client, good, good, "{", line("b", {"stream": True}), line("c", {}, "/v1/other"),
            line("d", 1),
        ).id,
    )  # fmt: skip
    assert batch.status == "failed"
    said = {error.line: (error.code, error.param) for error in batch.errors.data}
    assert said == {
        2: ("duplicate_custom_id", "custom_id"),
        3: ("invalid_json", None),
        4: ("invalid_request", "body.stream"),
        5: ("invalid_request", "url"),
        6: ("invalid_parameter", None),
    }
    assert ended(client, begin(client).id).errors.data[0].code == "empty_file"
    for wrong in ({"endpoint": "/v1/models"}, {"completion_window": "soon"}):
        asked: Any = {"endpoint": "/v1/completions", "completion_window": "24h", **wrong}
        with pytest.raises(openai.BadRequestError):
            client.batches.create(input_file_id=upload(client, good), **asked)


def test_batches_rest_while_clients_ask(server: ServerProcess, client: openai.OpenAI) -> None:
    """No line ends while somebody waits for an answer; cancelled, a batch has what it had."""
    auth = {"authorization": "Bearer two"}
    # More than sockets hold: it waits for its reader.
    body = {**LONG, "stream": True, "n": 8, "logprobs": 100}
    with server.http.stream("POST", "/v1/completions", json=body, headers=auth) as answer:
        lines = answer.iter_lines()
        next(lines)
        batch = begin(client, *(line(str(i), {**LONG, "max_tokens": 100}) for i in range(40)))
        until(client, batch.id, lambda b: b.status == "in_progress")
        time.sleep(0.3)
        assert client.batches.retrieve(batch.id).request_counts.completed == 0
    until(client, batch.id, lambda b: b.request_counts.completed > 0)
    client.batches.cancel(batch.id)
    done = ended(client, batch.id)
    assert done.status == "cancelled"
    assert len(rows(client, done.output_file_id)) == done.request_counts.completed
    assert client.batches.list(limit=1).data[0].id == batch.id
    with pytest.raises(openai.BadRequestError):
        client.batches.cancel(batch.id)
    with pytest.raises(openai.NotFoundError):
        client_of(server, "two").batches.retrieve(batch.id)


def test_expiry(client: openai.OpenAI) -> None:
    """Lines that were not answered in time are errors that say so."""
    batch = ended(client, begin(client, *(line(str(i), LONG) for i in range(64)), window="1s").id)
    assert batch.status == "expired"
    late = rows(client, batch.error_file_id)
    assert {row["error"]["code"] for row in late} == {"batch_expired"}
    ids = [int(row["custom_id"]) for row in (*late, *rows(client, batch.output_file_id))]
    assert sorted(ids) == list(range(64))
    assert late


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_restart_goes_on(tmp_path: Path, number: int) -> None:
    """Killed or told to end, a server leaves its batches to the next one, which loses no result.

    And, where it was told, the prefixes that it computed, with the same answers.
    """
    args = ("nano", "--files", str(tmp_path / "files"), "--cache-disk", str(tmp_path / "disk"))
    again = {"prompt": "x = 1\n" * 60, "max_tokens": 4, "temperature": 0}
    with serving(tmp_path, *args) as server:
        client = client_of(server)
        lines = [line(str(i), {**LONG, "seed": i, "max_tokens": 40}) for i in range(40)]
        batch = begin(client, *lines)
        first = server.post("/v1/completions", **again).json()
        until(client, batch.id, lambda b: b.request_counts.completed > 0)
        server.signal(number)
        assert server.wait() == (0 if number == signal.SIGTERM else -9)
    with serving(tmp_path, *args) as server:
        client = client_of(server)
        done = ended(client, batch.id)
        assert done.status == "completed"
        found = rows(client, done.output_file_id)
        assert [row["custom_id"] for row in found] == [str(i) for i in range(40)]
        alone = server.post("/v1/completions", **lines[0]["body"]).json()
        assert found[0]["response"]["body"]["receipt"] == alone["receipt"]
        assert server.log.count("batch_req") < 40  # the rest was there
        second = server.post("/v1/completions", **again).json()
        assert second["choices"] == first["choices"]
        cached = [x["usage"]["prompt_tokens_details"]["cached_tokens"] for x in (first, second)]
        assert cached[0] < 64  # lines of the batch begin with the same tokens
        assert cached[1] >= 64 or number == signal.SIGKILL
    assert list((tmp_path / "files").glob("*.part")) == []
