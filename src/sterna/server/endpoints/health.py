"""GET /health and GET /metrics."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.routing import Endpoint, as_json, service_of


async def health(request: Request) -> Response:
    """Answer 200 if requests are accepted; 503 while the first model loads and during shutdown."""
    service = service_of(request)
    if service.limits.draining or service.loading:
        status = "shutting down" if service.limits.draining else "loading"
        return as_json({"status": status}, 503, {"retry-after": "5"})
    return as_json({"status": "ok"})


async def metrics(request: Request) -> Response:
    """Return metrics in Prometheus's text format."""
    return Response(service_of(request).metrics.text(), media_type="text/plain; version=0.0.4")


ENDPOINTS = [
    Endpoint("GET", "/health", health, "Whether requests are accepted.", is_open=True),
    Endpoint("GET", "/metrics", metrics, "Metrics for Prometheus."),
]
