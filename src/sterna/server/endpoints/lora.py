"""llama.cpp's /lora-adapters: the adapters and their scales."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.json_body import decode, read_bytes
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sampling_fields import LoraScale


async def adapters(request: Request) -> Response:
    """List the adapters, with the scales that the caller's requests have by default."""
    scales = service_of(request).lora.of(request.state.key)
    return as_json(
        [
            {"id": i, "path": name, "scale": scale, "task_name": "", "prompt_prefix": ""}
            for i, (name, scale) in enumerate(scales.items())
        ]
    )


async def set_scales(request: Request) -> Response:
    """Set these scales; adapters that are left out have 0."""
    scales = decode(await read_bytes(request), list[LoraScale])
    service_of(request).lora.set(request.state.key, scales)
    return as_json({"success": True})


ENDPOINTS = [
    Endpoint("GET", "/lora-adapters", adapters, "Lists the adapters (llama.cpp)."),
    Endpoint("POST", "/lora-adapters", set_scales, "Sets the scales of adapters (llama.cpp)."),
]
