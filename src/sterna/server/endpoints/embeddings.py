"""POST /v1/embeddings: embeds texts."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.server.errors import ApiError
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of

MAX_TEXTS = 2048


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed. prompt_name and pooling are as in `LLM.embed`."""

    protocol: ClassVar[str] = "embeddings"
    input: str | list[str]
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None
    prompt_name: str | None = None
    pooling: str | None = None


async def embeddings(request: Request) -> Response:
    """Embed each text, as floats or as base64 of float32."""
    body = await read(request, EmbeddingRequest)
    service = service_of(request)
    service.limits.require_open()
    texts = [body.input] if isinstance(body.input, str) else body.input
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise ApiError(
            400, f"input: must be 1 to {MAX_TEXTS} texts, but got {len(texts)}", param="input"
        )
    if body.encoding_format not in ("float", "base64"):
        raise ApiError(400, "encoding_format: must be float or base64", param="encoding_format")
    adapter = service.models.adapter_of(body.model)
    async with service.models.use(body.model) as loaded:
        service.limits.require_room(loaded.engine.load(), 1)
        rows = await asyncio.to_thread(
            loaded.llm.embed, texts, prompt_name=body.prompt_name, pooling=body.pooling,
            adapter=adapter,
        )  # fmt: skip
        count = sum(len(loaded.llm.tokenizer.encode(text)) for text in texts)
        name = adapter or loaded.name
    if body.dimensions not in (None, rows.shape[1]):
        raise ApiError(
            400, f"dimensions: must be {rows.shape[1]}, as the model has", param="dimensions"
        )
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(row, body.encoding_format)}
        for i, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return as_json({"object": "list", "data": data, "model": name, "usage": usage})


def _encoded(row: Any, encoding: str) -> Any:
    if encoding == "float":
        return row.tolist()
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


ENDPOINTS = [
    Endpoint("POST", "/v1/embeddings", embeddings, "Embeds texts.", EmbeddingRequest),
]
