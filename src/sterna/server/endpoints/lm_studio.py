"""LM Studio's /api/v0: its list of models; the rest is OpenAI's under another path."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sterna.errors import shown
from sterna.server.endpoints.chat import ChatCompletionRequest, chat
from sterna.server.endpoints.completions import CompletionRequest, completions
from sterna.server.endpoints.embeddings import EmbeddingRequest, embeddings
from sterna.server.errors import ApiError
from sterna.server.model_description import abilities, quantization
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.service import Service


async def models(request: Request) -> Response:
    """List all models."""
    service = service_of(request)
    rows = [_row(service, name) for name in service.models.names]
    return as_json({"object": "list", "data": rows})


async def model(request: Request) -> Response:
    """Return one model."""
    service, name = service_of(request), request.path_params["model"]
    if name not in service.models.names:
        raise ApiError(404, f"model: {shown(name)} is not served", code="model_not_found")
    return as_json(_row(service, name))


def _row(service: Service, name: str) -> dict[str, Any]:
    loaded = service.models.loaded.get(service.models.model_of(name))
    row: dict[str, Any] = {
        "id": name,
        "object": "model",
        "type": "llm",
        "publisher": name.rpartition("/")[0],
        "compatibility_type": "gguf",
        "state": "not-loaded" if loaded is None else "loaded",
    }
    if loaded is not None:
        llm, can = loaded.llm, abilities(loaded.llm)
        row |= {
            "type": "embeddings" if "embedding" in can else "llm",
            "arch": llm.model.config.architecture,
            "quantization": quantization(llm),
            "max_context_length": llm.model.config.max_position,
            "loaded_context_length": llm.context,
            "capabilities": ["tool_use"] if "tools" in can else [],
        }
    return row


ENDPOINTS = [
    Endpoint("GET", "/api/v0/models", models, "Lists the models (LM Studio)."),
    Endpoint("GET", "/api/v0/models/{model:path}", model, "Returns a model (LM Studio)."),
    Endpoint(
        "POST",
        "/api/v0/chat/completions",
        chat,
        "Answers a conversation (LM Studio).",
        ChatCompletionRequest,
    ),
    Endpoint(
        "POST",
        "/api/v0/completions",
        completions,
        "Continues prompts (LM Studio).",
        CompletionRequest,
    ),
    Endpoint(
        "POST", "/api/v0/embeddings", embeddings, "Embeds texts (LM Studio).", EmbeddingRequest
    ),
]
