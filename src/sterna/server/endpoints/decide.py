"""POST /v1/decide: the probabilities of given answers to questions about a context."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm import Decision
from sterna.server.errors import field_error
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sse import with_cancellation

MAX_QUESTIONS = 4096


class DecideRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Questions about one or several contexts; the fields are the arguments of `LLM.decide`."""

    context: str | list[str | dict[str, Any]]
    question: str | list[str]
    model: str | None = None
    options: list[str] | dict[str, str] | None = None
    score: list[int] | None = None
    neutral: str | None = None
    normalise: bool = False
    priority: int = 0
    cache_salt: str = ""
    user: Any = None


async def decide(request: Request) -> Response:
    """Decide each question about each context."""
    body = await read(request, DecideRequest)
    questions = [body.question] if isinstance(body.question, str) else body.question
    several = isinstance(body.context, list) and isinstance(next(iter(body.context), None), str)
    count = len(questions) * (len(body.context) if several else 1)
    if not 1 <= count <= MAX_QUESTIONS:
        raise field_error("question", f"must be 1 to {MAX_QUESTIONS} in all, but got {count}")
    active = await service_of(request).begin(request, body.model, "decide")
    work = active.decide(
        body.context,
        questions,
        priority=body.priority,
        salt=body.cache_salt,
        options=body.options,
        score=body.score,
        neutral=body.neutral,
        normalise=body.normalise,
    )
    decisions = await with_cancellation(request.receive, work, active.cancel)
    data = []
    for i, one in enumerate(decisions):
        of_context = {"context": i // len(questions)} if several else {}
        data.append({"index": i, **of_context, **_row(questions[i % len(questions)], one)})
    return as_json(
        {
            **await active.head("decisions"),
            "normalised": body.normalise,
            "data": data,
            "usage": usage(decisions),
        }
    )


def _row(question: str, decision: Decision) -> dict[str, Any]:
    neutral = decision.neutral_logprobs
    options = [
        {
            "text": text,
            "probability": probability,
            "logprob": decision.logprobs[text],
            "tokens": decision.lengths[text],
            **({"neutral_logprob": neutral[text]} if neutral is not None else {}),
        }
        for text, probability in decision.probabilities.items()
    ]
    return {
        "question": question,
        "answer": decision.answer,
        "probability": decision.probability,
        "confidence": decision.confidence,
        **({"value": decision.value} if decision.value is not None else {}),
        "options": options,
    }


def usage(decisions: list[Decision]) -> dict[str, Any]:
    """Return the tokens of all prompts; those that were cached or shared count as cached."""
    prompt = sum(one.stats.n_prompt for one in decisions)
    cached = sum(one.stats.n_cached for one in decisions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": 0,
        "total_tokens": prompt,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


ENDPOINTS = [
    Endpoint(
        "POST", "/v1/decide", decide, "Says how likely each of some answers is.", DecideRequest
    )
]
