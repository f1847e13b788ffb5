"""An operator sees memory at the start and in metrics, logs, ids of requests, spans."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from checkpoint_factory import QWEN3_MOE, write
from helpers import command
from server_process import serving
from starlette.applications import Starlette
from starlette.testclient import TestClient
from waits import wait_until

from sterna import loading
from sterna.checkpoints.directory import Checkpoint
from sterna.checkpoints.packed_directory import packed_bytes
from sterna.cli import serve
from sterna.server import app
from sterna.server.settings import Settings


def test_logs_and_memory(tmp_path: Path) -> None:
    """Every line is JSON; ids go in, out and into the log; the budget is in log and metrics."""
    with serving(tmp_path, "nano", "--log-format", "json", "--cache-ram", "64M") as server:
        headers = {"x-request-id": "mine-1"}
        body = {"prompt": "a", "max_tokens": 1}
        answer = server.http.post("/v1/completions", json=body, headers=headers)
        assert answer.headers["x-request-id"] == "mine-1"
        metrics = server.http.get("/metrics").text
        lines = [json.loads(line) for line in server.log.splitlines()]
    (loaded,) = (line["message"] for line in lines if "loaded nano" in line.get("message", ""))
    assert "at most 6" in loaded
    assert [line["status"] for line in lines if line.get("id") == "mine-1"] == [200]
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    most = float(values['sterna_kv_cache_max_bytes{model_name="nano"}'])
    assert (60 << 20) < most <= (64 << 20)
    assert 0 < float(values['sterna_kv_cache_cached_bytes{model_name="nano"}']) <= most
    assert float(values['sterna_kv_cache_running_bytes{model_name="nano"}']) == 0
    assert float(values["process_resident_memory_bytes"]) > most / 64


def test_weights_on_disk_are_counted(tmp_path: Path) -> None:
    source = write(tmp_path / "source", QWEN3_MOE)
    loading.save(loading.load(source, format="q4_0", cached=False), tmp_path / "moe")
    budget = packed_bytes(Checkpoint.open(tmp_path / "moe")).all - 1
    with serving(tmp_path, str(tmp_path / "moe"), "--weights-ram", str(budget)) as server:
        assert server.post("/v1/completions", prompt="a", max_tokens=1).status_code == 200
        metrics = server.http.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    for name in ("cache_misses", "read_bytes", "wait_seconds"):
        assert float(values[f'sterna_weight_{name}_total{{model_name="moe"}}']) > 0


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    """A line in the log, once, and a metric; probes of health are no lines."""
    folder = tmp_path / "cache"
    with serving(tmp_path, "nano", "--cache-disk", str(folder)) as server:
        for prompt in ("a = 1\n" * 80, "b = 2\n" * 80):
            if not folder.is_file():
                shutil.rmtree(folder, ignore_errors=True)
                folder.write_text("no folder: writes fail as on a full disk")
            assert server.post("/v1/completions", prompt=prompt, max_tokens=1).status_code == 200
            server.http.get("/health")
        name = 'sterna_disk_cache_errors_total{model_name="nano"}'
        assert name in server.http.get("/metrics").text
        wait_until(lambda: f"{name} 0.0" not in server.http.get("/metrics").text)
        log = server.log
    assert log.count("cache_disk: pages are not kept on disk") == 1
    assert "/health" not in log


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:80", True), ("127.0.0.1", True), ("[::1]:8080", True), ("10.0.0.7:1", True),
        ("own.example", True), ("evil.example", False), ("127.0.0.1:80@evil.example", False),
        ("user@127.0.0.1", False), ("127.0.0.1/evil", False), ("127.0.0.1 evil", False),
        ("[::1]evil", False), ("localhost:80:80", False), ("", False), ("[evil.example]", False),
    ],
)  # fmt: skip
def test_hosts(host: str, allowed: bool) -> None:
    assert Settings(hosts=("own.example",)).allows_host(host) == allowed


def test_default_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of free memory, which the engine takes by itself, up to a bound."""
    from sterna import runtime

    for available, expected in ((8 << 30, {}), (1 << 40, {"kv_bytes": serve.MOST_CACHE_RAM})):
        monkeypatch.setattr(runtime, "available_bytes", lambda n=available: n)
        assert serve._bounded_cache(None) == expected
    assert serve._bounded_cache(1 << 50) == {}
    assert "--cache-ram" in command("serve", "--help").stdout


def test_spans() -> None:
    """Starlette's middleware makes them, under the provider that is set."""
    export = pytest.importorskip("opentelemetry.sdk.trace.export")
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    sdk = pytest.importorskip("opentelemetry.sdk.trace")
    exporter, provider = memory.InMemorySpanExporter(), sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    (tracing,) = app._tracing(Settings(otel=True))
    tracing.kwargs["tracer_provider"] = provider
    client = TestClient(Starlette(middleware=[tracing]))
    client.get("/health")
    client.get("/v1/models")
    assert [span.attributes["url.path"] for span in exporter.get_finished_spans()] == ["/v1/models"]
