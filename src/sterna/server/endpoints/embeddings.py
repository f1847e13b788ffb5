"""POST /v1/embeddings: embeds texts."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec
import numpy as np
import numpy.typing as npt
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm.embedder import truncation
from sterna.server.errors import field_error, invalid
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of

MAX_TEXTS = 2048
#: vLLM's word for as many tokens as the model takes.
NO_LIMIT = -1
#: Cohere's words.
TRUNCATIONS: dict[str, bool | str] = {"NONE": False, "START": "start", "END": "end"}


class EmbeddingRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Texts to embed. prompt_name and pooling are as in `LLM.embed`.

    truncate: a flag, or Cohere's NONE, START or END. truncate_prompt_tokens: vLLM's, where -1 is as
    many as the model takes.

    input: token ids have a type only so that their refusal can say what to send.
    """

    protocol: ClassVar[str] = "embeddings"
    input: str | list[str | int | list[int]]
    model: str | None = None
    encoding_format: str = "float"
    dimensions: int | None = None
    prompt_name: str | None = None
    pooling: str | None = None
    truncate: bool | str | None = None
    truncate_prompt_tokens: int | None = None


async def embeddings(request: Request) -> Response:
    """Embed each text, as floats or as base64 of float32."""
    body = await read(request, EmbeddingRequest)
    if body.encoding_format not in ("float", "base64"):
        raise field_error("encoding_format", "must be float or base64")
    rows, count, name = await embedded(
        request,
        body.model,
        body.input,
        body.dimensions,
        prompt_name=body.prompt_name,
        pooling=body.pooling,
        truncate=truncation_asked(body.truncate, body.truncate_prompt_tokens),
    )
    data = [
        {"object": "embedding", "index": i, "embedding": _encoded(row, body.encoding_format)}
        for i, row in enumerate(rows)
    ]
    usage = {"prompt_tokens": count, "total_tokens": count}
    return as_json({"object": "list", "data": data, "model": name, "usage": usage})


def truncation_asked(truncate: bool | str | None, count: int | None) -> bool | int | str:
    """Return `LLM.embed`'s `truncate`. count: `truncate_prompt_tokens`. ApiError 400."""
    if count is not None:
        if count != NO_LIMIT and count < 1:
            raise invalid("truncate_prompt_tokens", "must be -1 or at least 1", count)
        return count if count > 0 else True
    if isinstance(truncate, str):
        if truncate.upper() not in TRUNCATIONS:
            raise invalid(
                "truncate", f"must be a flag or one of {', '.join(TRUNCATIONS)}", truncate
            )
        return TRUNCATIONS[truncate.upper()]
    return bool(truncate)


def _texts(inputs: Sequence[object]) -> list[str]:
    """Return the texts of a request; ApiError 400 for token ids.

    Clients make ids with a tokenizer of their own, as LangChain does with tiktoken's, so to this
    model they would be another text.
    """
    texts = [text for text in inputs if isinstance(text, str)]
    if len(texts) < len(inputs):
        raise field_error(
            "input",
            "must be a text or a list of texts, but got token ids; send the texts "
            "(LangChain's OpenAIEmbeddings: with check_embedding_ctx_length=False)",
        )
    return texts


async def embedded(
    request: Request,
    model: str | None,
    value: str | Sequence[object],
    dimensions: int | None,
    **options: Any,
) -> tuple[npt.NDArray[np.float32], int, str]:
    """Return vectors, float32 [texts, hidden_size], the tokens of all texts, and the model's name.

    options: those of `LLM.embed`. Truncated texts are counted in a warning. ApiError 400.
    """
    service = service_of(request)
    service.limits.require_open()
    texts = [value] if isinstance(value, str) else _texts(value)
    if not 1 <= len(texts) <= MAX_TEXTS:
        raise field_error("input", f"must be 1 to {MAX_TEXTS} texts, but got {len(texts)}")
    adapter = service.models.adapter_of(model)
    async with service.models.use(model) as loaded:
        service.limits.require_room(loaded.engine.load(), 1)
        llm, name = loaded.llm, adapter or loaded.name
        inputs = await asyncio.to_thread(partial(llm.embedder.inputs, texts, **options))
        if said := truncation(inputs.cut):
            request.state.warnings.append(f"input: {said}")
        chosen = llm.adapters.chosen(adapter)
        rows = await asyncio.to_thread(llm.embedder.vectors, inputs, chosen)
    if dimensions not in (None, rows.shape[1]):
        raise field_error("dimensions", f"must be {rows.shape[1]}, as the model has")
    return rows, inputs.n_tokens, name


def _encoded(row: Any, encoding: str) -> Any:
    if encoding == "float":
        return row.tolist()
    return base64.b64encode(row.astype("<f4").tobytes()).decode()


ENDPOINTS = [Endpoint("POST", "/v1/embeddings", embeddings, "Embeds texts.", EmbeddingRequest)]
