"""An operator sees memory at the start and in metrics, logs, ids of requests, spans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import command
from server_process import serving
from starlette.applications import Starlette
from starlette.testclient import TestClient

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
