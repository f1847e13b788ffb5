"""POST /v1/rerank and /v1/score: how relevant texts are to a query.

A cross-encoder scores the pair, be it an encoder with a head or a language model asked for yes or
no. An embedding model gives cosine similarities. Any other model gives the mean log-probability of
the query's tokens after the text: how likely a reader of the text would ask the query.
"""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, TypeAlias

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm.embedder import truncation
from sterna.llm.pair_truncation import PairLimits, within_limits
from sterna.server.active_request import ActiveRequest
from sterna.server.endpoints.embeddings import truncation_asked
from sterna.server.errors import ApiError, field_error, invalid
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sse import with_cancellation

MAX_TEXTS = 1024
#: Separates a text from the query scored after it.
BETWEEN = "\n\n"


class TruncationFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The truncation of pairs.

    truncate_prompt_tokens: vLLM's, the most tokens of a pair; -1: as many as the model takes.
    truncate, truncation: this as a flag, of TEI and Jina, and of Voyage. max_tokens_per_doc:
    Cohere's, the most tokens of a text.
    """

    truncate_prompt_tokens: int | None = None
    truncate: bool | None = None
    truncation: bool | None = None
    max_tokens_per_doc: int | None = None

    def asked(self) -> Truncation:
        """Return the truncation. ApiError 400."""
        flag = bool(self.truncate or self.truncation)
        pair = truncation_asked(flag, self.truncate_prompt_tokens)
        if self.max_tokens_per_doc is not None and self.max_tokens_per_doc < 1:
            raise invalid("max_tokens_per_doc", "must be at least 1", self.max_tokens_per_doc)
        assert not isinstance(pair, str)
        return Truncation(pair, self.max_tokens_per_doc)


class Truncation(NamedTuple):
    """`LLM.score`'s truncate and max_tokens_per_doc."""

    pair: bool | int
    text: int | None

    def of_text(self) -> bool | int:
        """Return `LLM.embed`'s truncate of a text."""
        if self.text is None or self.pair is False:
            return self.pair if self.text is None else self.text
        return self.text if self.pair is True else min(self.pair, self.text)


class RerankRequest(TruncationFields, kw_only=True, forbid_unknown_fields=True):
    """A query and the texts to rank."""

    query: str
    documents: list[str | dict[str, Any]]
    model: str | None = None
    top_n: int | None = None
    return_documents: bool = True
    user: Any = None


class ScoreRequest(TruncationFields, kw_only=True, forbid_unknown_fields=True):
    """Pairs of texts: text_1 is one text for all of text_2, or one for each."""

    text_1: str | list[str]
    text_2: str | list[str]
    model: str | None = None
    user: Any = None


async def rerank(request: Request) -> Response:
    """Rank texts, the most relevant first."""
    body = await read(request, RerankRequest)
    texts = [_text(i, document) for i, document in enumerate(body.documents)]
    pairs = [(body.query, text) for text in texts]
    active, scores = await _scored(request, body.model, pairs, "rerank", body.asked())
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
        raise field_error("text_1", f"must be one text or {len(seconds)}, but got {len(firsts)}")
    pairs = list(zip(firsts, seconds, strict=True))
    active, scores = await _scored(request, body.model, pairs, "score", body.asked())
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
    request: Request,
    model: str | None,
    pairs: list[tuple[str, str]],
    prefix: str,
    limits: Truncation,
) -> tuple[ActiveRequest, list[float]]:
    """Score each (query, text). Truncated pairs are counted in a warning."""
    if not 1 <= len(pairs) <= MAX_TEXTS:
        raise ApiError(400, f"documents: must be 1 to {MAX_TEXTS} texts, but got {len(pairs)}")
    service = service_of(request)
    active = await service.begin(request, model, prefix)
    service.limits.require_room(active.model.engine.load(), len(pairs))
    config = active.model.llm.model.config
    if active.model.llm.scores_pairs:
        work = asyncio.to_thread(_cross_encoded, active, pairs, limits)
    elif config.pooling or config.bidirectional:
        work = asyncio.to_thread(_cosines, active, pairs, limits)
    else:
        work = _likelihoods(active, pairs, limits)
    scores, cut = await with_cancellation(request.receive, active.run(work), active.cancel)
    if said := truncation(cut):
        active.warnings.append(f"documents: {said}")
    return active, scores


#: Scores, and how many tokens each text, or each pair, has lost by truncation.
_Scores: TypeAlias = tuple[list[float], list[int]]


def _cross_encoded(
    active: ActiveRequest, pairs: list[tuple[str, str]], limits: Truncation
) -> _Scores:
    llm = active.model.llm
    checked = PairLimits.of(limits.pair, limits.text, llm.context)
    scores, cut = llm.cross_encoder.score(pairs, llm.adapters.chosen(active.adapter), checked)
    return scores.tolist(), cut


def _cosines(active: ActiveRequest, pairs: list[tuple[str, str]], limits: Truncation) -> _Scores:
    llm, cut = active.model.llm, list[int]()
    adapter = llm.adapters.chosen(active.adapter)

    def rows(texts: set[str], truncate: bool | int) -> dict[str, Any]:
        inputs = llm.embedder.inputs(sorted(texts), truncate=truncate)
        cut.extend(inputs.cut)
        return dict(zip(sorted(texts), llm.embedder.vectors(inputs, adapter), strict=True))

    queries = rows({query for query, _ in pairs}, limits.pair)
    texts = rows({text for _, text in pairs}, limits.of_text())
    return [float(queries[query] @ texts[text]) for query, text in pairs], cut


async def _likelihoods(
    active: ActiveRequest, pairs: list[tuple[str, str]], limits: Truncation
) -> _Scores:
    tokenizer, score = active.model.llm.tokenizer, active.model.engine.score
    most, cut = PairLimits.of(limits.pair, limits.text, active.model.llm.context), list[int]()

    async def one(query: str, text: str) -> float:
        after = tokenizer.encode(query, add_special=False)
        if not after:
            raise field_error("query", "must not be empty")
        room = most._replace(pair=max(1, most.pair - len(after)) if most.pair else 0)
        before, lost = within_limits(
            tokenizer, text, room, lambda begin: tokenizer.encode(begin + BETWEEN)
        )
        cut.append(lost)
        scored = await score([*before, *after], key=active.key, adapter=active.adapter)
        total: float = sum(entry.logprob for entry in scored[len(before) :] if entry)
        return total / len(after)

    return await asyncio.gather(*(one(*pair) for pair in pairs)), cut


def _text(i: int, document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise field_error(f"documents[{i}]", "must be a text")
    return text


ENDPOINTS = [
    Endpoint(
        "POST", "/v1/rerank", rerank, "Ranks texts by their relevance to a query.", RerankRequest
    ),
    Endpoint("POST", "/v1/score", score, "Scores pairs of texts.", ScoreRequest),
]
