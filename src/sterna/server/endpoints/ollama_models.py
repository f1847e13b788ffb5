"""ollama's /api/tags, /api/show, /api/ps, /api/pull, /api/embed and /api/version."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from sterna import __version__
from sterna.errors import shown
from sterna.llm import LLM
from sterna.server.endpoints.embeddings import embedded
from sterna.server.errors import ApiError
from sterna.server.json_body import read
from sterna.server.keep_alive import unloads
from sterna.server.model_description import (
    LATEST,
    abilities,
    dimensions,
    known_name,
    name_digest,
    quantization,
    timestamp,
)
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.service import Service

#: The version of ollama's protocol that is followed; clients refuse old ones.
VERSION = "0.35.0"
STARTED = time.time()
#: When an unused model leaves memory, for a server that keeps all: in a century.
NEVER_S = 100 * 365 * 86400


class Named(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A model, by the name of either field."""

    model: str | None = None
    name: str | None = None
    verbose: Any = None
    system: Any = None
    template: Any = None
    options: Any = None
    stream: bool = True
    insecure: Any = None


class EmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed, or one `prompt`; they are cut to what the model takes unless `truncate` is
    false."""

    model: str
    input: str | list[str] = ""
    prompt: str = ""
    dimensions: int | None = None
    truncate: bool | None = None
    options: Any = None
    keep_alive: Any = None


async def tags(request: Request) -> Response:
    """List all models."""
    service = service_of(request)
    return as_json({"models": [_row(service, name) for name in service.models.names]})


async def running(request: Request) -> Response:
    """List the models in memory."""
    service, rows = service_of(request), []
    for name, loaded in service.models.loaded.items():
        keep = service.settings.keep_alive or NEVER_S
        ends = time.time() + keep - (time.monotonic() - loaded.used)
        more = {"expires_at": timestamp(ends), "size_vram": 0, "context_length": loaded.llm.context}
        rows.append({**_row(service, name), **more})
    return as_json({"models": rows})


async def show(request: Request) -> Response:
    """Describe a model, which is loaded for that."""
    service = service_of(request)
    name = _name(service, await read(request, Named))
    async with service.models.use(name) as loaded:
        llm: LLM = loaded.llm
        kind, own = llm.model.config.architecture, dimensions(llm)
        sampling = (f"{key:<30} {value}" for key, value in llm.defaults.items())
        return as_json(
            {
                "modelfile": f"FROM {name}\n",
                "parameters": "\n".join(sampling),
                "template": llm.template.source if llm.template else "",
                "details": _details(llm),
                "model_info": {
                    "general.architecture": kind,
                    "general.parameter_count": own["n_params"],
                    f"{kind}.context_length": llm.context,
                    f"{kind}.embedding_length": own["n_embd"],
                    f"{kind}.block_count": llm.model.config.n_layers,
                    f"{kind}.attention.head_count": llm.model.config.n_heads,
                    f"{kind}.vocab_size": own["n_vocab"],
                },
                "capabilities": abilities(llm),
                "modified_at": timestamp(loaded.created),
            }
        )


async def pull(request: Request) -> Response:
    """Confirm that a model is served; nothing is downloaded for a client."""
    _name(service_of(request), await read(request, Named))
    return as_json({"status": "success"})


async def embed(request: Request) -> Response:
    """Embed each text."""
    body, began = await read(request, EmbedRequest), time.perf_counter()
    rows, count = await _embedded(request, body, body.input, body.dimensions)
    return as_json(
        {
            "model": body.model,
            "embeddings": rows.tolist(),
            "total_duration": round((time.perf_counter() - began) * 1e9),
            "load_duration": 0,
            "prompt_eval_count": count,
        }
    )


async def embeddings(request: Request) -> Response:
    """Embed one prompt, as ollama did at first."""
    body = await read(request, EmbedRequest)
    rows, _ = await _embedded(request, body, body.prompt, None)
    return as_json({"embedding": rows[0].tolist()})


async def _embedded(
    request: Request, body: EmbedRequest, texts: str | list[str], dimensions: int | None
) -> tuple[npt.NDArray[np.float32], int]:
    """Return vectors and the number of tokens; unload the model if the request says so."""
    models, leaves = service_of(request).models, unloads(body.keep_alive)
    name = known_name(service_of(request), body.model) or body.model
    truncate = body.truncate is not False
    rows, count, _ = await embedded(request, name, texts, dimensions, truncate=truncate)
    if leaves:
        await models.unload_idle(name)
    return rows, count


async def version(request: Request) -> Response:
    """Return the version of ollama's protocol, and the server's own."""
    return as_json({"version": VERSION, "sterna": __version__})


def _name(service: Service, body: Named) -> str:
    asked = body.model or body.name
    name = known_name(service, asked)
    if name not in service.models.names:
        raise ApiError(404, f"model: {shown(asked)} is not served", code="model_not_found")
    return name


def _row(service: Service, name: str) -> dict[str, Any]:
    tagged = name if ":" in name else f"{name}{LATEST}"
    loaded = service.models.loaded.get(service.models.model_of(name))
    return {
        "name": tagged,
        "model": tagged,
        "modified_at": timestamp(loaded.created if loaded else STARTED),
        "size": service.models.file_bytes(name),
        "digest": name_digest(name),
        "details": _details(loaded.llm if loaded else None),
    }


def _details(llm: LLM | None) -> dict[str, Any]:
    family = "" if llm is None else llm.model.config.architecture
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family] if family else [],
        "parameter_size": "" if llm is None else _short(llm.model.n_params),
        "quantization_level": "" if llm is None else quantization(llm),
    }


def _short(count: int) -> str:
    """Write a count of parameters as 7.6B or 135M."""
    return f"{count / 1e9:.1f}B" if count >= 1e9 else f"{count / 1e6:.0f}M"


ENDPOINTS = [
    Endpoint("GET", "/api/tags", tags, "Lists the models (ollama)."),
    Endpoint("GET", "/api/ps", running, "Lists the models in memory (ollama)."),
    Endpoint("POST", "/api/show", show, "Describes a model (ollama).", Named),
    Endpoint("POST", "/api/pull", pull, "Says whether a model is served (ollama).", Named),
    Endpoint("POST", "/api/embed", embed, "Embeds texts (ollama).", EmbedRequest),
    Endpoint("POST", "/api/embeddings", embeddings, "Embeds a text (ollama).", EmbedRequest),
    Endpoint("GET", "/api/version", version, "The version (ollama).", is_open=True),
]
