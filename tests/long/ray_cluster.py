"""Sterna on a local cluster of Ray: actors are killed, rows stay the same; see README.md."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

ray = pytest.importorskip("ray")

from sterna import LLM  # noqa: E402
from sterna.integrations.ray import Predictor, build_app  # noqa: E402

PROMPTS = [f"def f{i}(x):\n" for i in range(48)]
OPTIONS = {"max_tokens": 48, "temperature": 1.0, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    ray.init(num_cpus=4, include_dashboard=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    return [done.text for done in LLM("nano", threads=1).generate(PROMPTS, seed=0, **OPTIONS)]


class Mortal(Predictor):
    """Kills its own process in its first batch, once for all actors."""

    def __init__(self, flag: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._flag = flag

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        try:
            os.close(os.open(self._flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return super().__call__(batch)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def test_rows_of_a_killed_actor(tmp_path: Any, expected: list[str]) -> None:
    """Two actors, of which one dies within a batch: the rows are those of one LLM, to the bit."""
    flag = str(tmp_path / "died")
    rows = (
        ray.data.from_items([{"id": i, "prompt": p} for i, p in enumerate(PROMPTS)])
        .map_batches(
            Mortal, concurrency=2, num_cpus=1, batch_size=8,
            fn_constructor_kwargs={
                "flag": flag, "model": "nano", "threads": 1, "options": OPTIONS,
            },
        )
        .take_all()
    )  # fmt: skip
    assert os.path.exists(flag)
    rows.sort(key=lambda row: row["id"])
    assert [row["text"] for row in rows] == expected
    assert {row["text_finish_reason"] for row in rows} == {"length"}


def test_serve(expected: list[str]) -> None:
    """Answers, whole and in a stream; a replica that is killed is one clean error, and replaced."""
    from ray import serve

    url = started(serve)
    serve.run(build_app("nano", threads=1, deployment_options={"num_replicas": 1}))
    try:
        ready(url)
        body = {"prompt": PROMPTS[0], "seed": 0, **OPTIONS}
        whole = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert whole.json()["choices"][0]["text"] == expected[0]
        with httpx.stream(
            "POST", f"{url}/v1/completions", json={**body, "max_tokens": 900, "stream": True}
        ) as answer:
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            os.kill(replica(), signal.SIGKILL)
            text = ""
            with contextlib.suppress(httpx.RemoteProtocolError):
                text = "\n".join(lines)
            assert "[DONE]" not in text
        ready(url)
        again = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert again.json()["choices"][0]["text"] == expected[0]
    finally:
        serve.shutdown()


def test_sessions() -> None:
    """Each meets the replica that has computed what it begins with, and not all meet one."""
    from ray import serve

    url = started(serve)
    options = {"num_replicas": 2}
    serve.run(build_app("nano", threads=1, by_session=True, deployment_options=options))
    try:
        ready(url)
        cached: list[int] = []
        totals: list[float] = []
        for session in range(12):
            body = {"prompt": f"# {session}\n" + "x = 1\n" * 60, "max_tokens": 1}
            headers = {"x-session-id": f"session {session}"}
            for again in (False, True, True):
                answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
                usage = answer.json()["usage"]
                cached += [usage["prompt_tokens_details"]["cached_tokens"]] if again else []
            text = httpx.get(f"{url}/metrics", headers=headers).text
            (line,) = [x for x in text.splitlines() if x.startswith("sterna_prompt_tokens_total{")]
            totals.append(float(line.split()[-1]))
        assert min(cached) >= 64
        assert max(totals) < 12 * 3 * usage["prompt_tokens"]  # no replica has counted them all
    finally:
        serve.shutdown()


def started(serve: Any) -> str:
    """Serve on a free port; its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    return f"http://127.0.0.1:{port}"


def replica() -> int:
    """The process of the only one."""
    names = {p.pid: " ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])}
    (found,) = [pid for pid, name in names.items() if name.startswith("ray::ServeReplica")]
    return found


def ready(url: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if httpx.get(f"{url}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise AssertionError("no replica is ready")
