"""POST /v1/rerank and /v1/score: how relevant texts are to a query.

A cross-encoder scores the pair, be it an encoder with a head or a language model asked for yes or
no. An embedding model gives cosine similarities. Any other model gives the mean log-probability of
the query's tokens after the text: how likely a reader of the text would ask the query.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sse import with_cancellation

MAX_TEXTS = 1024
#: Separates a text from the query scored after it.
BETWEEN = "\n\n"


class RerankRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A query and the texts to rank."""

    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = True
    user: Any = None


class ScoreRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Pairs of texts: text_1 is one text for all of text_2, or one for each."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    user: Any = None


async def rerank(request: Request) -> Response:
    """Rank texts, the most relevant first."""
    body = await read(request, RerankRequest)
    texts = [_text(i, document) for i, document in enumerate(body.documents)]
    active, scores = await _scored(request, body.model, [(body.query, t) for t in texts], "rerank")
    order = sorted(range(len(texts)), key=lambda i: (-scores[i], i))
    results = [
        {
            "index": i,
            "relevance_score": scores[i],
            **({"document": {"text": texts[i]}} if body.return_documents else {}),
        }
        for i in order[: body.top_n]
    ]
    return as_json({"id": active.id, "model": active.name, "results": results})


async def score(request: Request) -> Response:
    """Score each pair of texts."""
    body = await read(request, ScoreRequest)
    seconds = [body.text_2] if isinstance(body.text_2, str) else body.text_2
    firsts = [body.text_1] * len(seconds) if isinstance(body.text_1, str) else body.text_1
    if len(firsts) != len(seconds):
        raise ApiError(
            400,
            f"text_1: must be one text or {len(seconds)}, but got {len(firsts)}",
            param="text_1",
        )
    pairs = list(zip(firsts, seconds, strict=True))
    active, scores = await _scored(request, body.model, pairs, "score")
    data = [{"index": i, "object": "score", "score": value} for i, value in enumerate(scores)]
    return as_json(
        {
            "id": active.id,
            "object": "list",
            "created": active.created,
            "model": active.name,
            "data": data,
        }
    )


async def _scored(
    request: Request, model: str | None, pairs: list[tuple[str, str]], prefix: str
) -> tuple[ActiveRequest, list[float]]:
    """Score each (query, text)."""
    if not 1 <= len(pairs) <= MAX_TEXTS:
        raise ApiError(400, f"documents: must be 1 to {MAX_TEXTS} texts, but got {len(pairs)}")
    service = service_of(request)
    active = await service.begin(request, model, prefix)
    service.limits.require_room(active.model.engine.load(), len(pairs))
    config = active.model.llm.model.config
    if active.model.llm.scores_pairs:
        work = asyncio.to_thread(_cross_encoded, active, pairs)
    elif config.pooling or config.bidirectional:
        work = asyncio.to_thread(_cosines, active, pairs)
    else:
        work = _likelihoods(active, pairs)
    scores = await with_cancellation(request.receive, active.run(work), active.cancel)
    return active, scores


def _cross_encoded(active: ActiveRequest, pairs: list[tuple[str, str]]) -> list[float]:
    scores: list[float] = active.model.llm.score(pairs, adapter=active.adapter).tolist()
    return scores


def _cosines(active: ActiveRequest, pairs: list[tuple[str, str]]) -> list[float]:
    names = sorted({text for pair in pairs for text in pair})
    rows = dict(zip(names, active.model.llm.embed(names, adapter=active.adapter), strict=True))
    return [float(rows[query] @ rows[text]) for query, text in pairs]


async def _likelihoods(active: ActiveRequest, pairs: list[tuple[str, str]]) -> list[float]:
    tokenizer, score = active.model.llm.tokenizer, active.model.engine.score

    async def one(query: str, text: str) -> float:
        before = tokenizer.encode(text + BETWEEN)
        after = tokenizer.encode(query, add_special=False)
        if not after:
            raise ApiError(400, "query: must not be empty", param="query")
        found = await score([*before, *after], key=active.key, adapter=active.adapter)
        total: float = sum(entry.logprob for entry in found[len(before) :] if entry)
        return total / len(after)

    return await asyncio.gather(*(one(*pair) for pair in pairs))


def _text(i: int, document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise ApiError(400, f"documents[{i}]: must be a text", param=f"documents[{i}]")
    return text


ENDPOINTS = [
    Endpoint(
        "POST", "/v1/rerank", rerank, "Ranks texts by their relevance to a query.", RerankRequest
    ),
    Endpoint("POST", "/v1/score", score, "Scores pairs of texts.", ScoreRequest),
]
