"""GET /v1/models: the models of this server, with details of those in memory."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.errors import shown
from sterna.llm.generation_config import chat_sampling
from sterna.server.errors import ApiError, invalid
from sterna.server.json_body import read
from sterna.server.model_description import abilities, dimensions, timestamp
from sterna.server.routing import Endpoint, as_json, is_anthropic, service_of
from sterna.server.service import Service

MAX_PAGE = 1000
STARTED = int(time.time())


async def models(request: Request) -> Response:
    """List all models, the default first."""
    service = service_of(request)
    if is_anthropic(request.scope):
        return as_json(_anthropic_page(request, service))
    return as_json({"object": "list", "data": [_row(service, n) for n in service.models.names]})


class ModelName(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A model to load or to unload."""

    model: str


async def load(request: Request) -> Response:
    """Load a model, and answer when it is in memory."""
    service, body = service_of(request), await read(request, ModelName)
    service.limits.require_open()
    async with service.models.use(body.model):
        return as_json({"success": True})


async def unload(request: Request) -> Response:
    """Unload a model that answers no request; the next request loads it again."""
    await service_of(request).models.unload((await read(request, ModelName)).model)
    return as_json({"success": True})


async def model(request: Request) -> Response:
    """Return one model."""
    service, name = service_of(request), request.path_params["model"]
    if name not in service.models.names:
        raise ApiError(404, f"model: {shown(name)} is not served", code="model_not_found")
    row = _anthropic_row if is_anthropic(request.scope) else _row
    return as_json(row(service, name))


def _anthropic_page(request: Request, service: Service) -> dict[str, Any]:
    """Return the page of Anthropic's list that the query asks for. ApiError 400."""
    query, names = request.query_params, list(service.models.names)
    for name, after in (("after_id", True), ("before_id", False)):
        if (id := query.get(name)) is not None:
            if id not in names:
                raise invalid(name, "must be an id of the list", id)
            at = names.index(id)
            names = names[at + 1 :] if after else names[:at]
    limit = query.get("limit", str(MAX_PAGE))
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= MAX_PAGE:
        raise invalid("limit", f"must lie in 1..{MAX_PAGE}", limit)
    most = int(limit)
    page = names[-most:] if "before_id" in query else names[:most]
    return {
        "data": [_anthropic_row(service, name) for name in page],
        "has_more": len(page) < len(names),
        "first_id": page[0] if page else None,
        "last_id": page[-1] if page else None,
    }


def _anthropic_row(service: Service, name: str) -> dict[str, Any]:
    loaded = service.models.loaded.get(service.models.model_of(name))
    context = loaded.llm.context if loaded else None
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": timestamp(loaded.created if loaded else STARTED),
        "lifecycle": "active",
        "max_input_tokens": context,
        "max_tokens": context,
    }


def _row(service: Service, name: str) -> dict[str, Any]:
    adapter, model = service.models.adapter_of(name), service.models.model_of(name)
    loaded = service.models.loaded.get(model)
    row: dict[str, Any] = {
        "id": name,
        "object": "model",
        "created": loaded.created if loaded else STARTED,
        "owned_by": "sterna",
        "loaded": loaded is not None,
        "status": service.models.state(name),
    }
    if adapter is not None:
        row["parent"] = model
    if loaded is not None:
        loaded.measure()
        info = loaded.llm.info()
        row["max_model_len"] = row["context_length"] = info["context"]
        row["capabilities"] = abilities(loaded.llm)
        keys = (
            "architecture",
            "format",
            "head",
            "bits",
            "kv_dtype",
            "context",
            "n_params",
            "bytes_per_token",
            "isa",
            "threads",
            "sampling",
        )
        row["meta"] = {key: info[key] for key in keys}
        row["meta"] |= dimensions(loaded.llm)
        row["meta"]["threads"] = int(info["threads"])  # it is an int subclass that knows its CPUs
        row["meta"]["bandwidth_gb_s"] = loaded.bandwidth_gb_s
        row["meta"]["chat"] = loaded.llm.template is not None
        own = loaded.llm.defaults
        row["meta"]["chat_sampling"] = {**own, **chat_sampling(own, {})}
        if adapter is not None:
            weights = loaded.llm.adapters[adapter]
            row["meta"] |= {"adapter_digest": weights.digest, "adapter_rank": weights.rank}
    return row


ENDPOINTS = [
    Endpoint("GET", "/v1/models", models, "Lists the models."),
    Endpoint("GET", "/models", models, "Lists the models (llama.cpp)."),
    Endpoint("GET", "/v1/models/{model:path}", model, "Returns a model."),
    Endpoint("POST", "/models/load", load, "Loads a model (llama.cpp).", ModelName),
    Endpoint("POST", "/models/unload", unload, "Unloads a model (llama.cpp).", ModelName),
]
