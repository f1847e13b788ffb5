"""POST /v1/systemone: typed questions about a state, in the form of System One's clients."""

from __future__ import annotations

import asyncio
import json
from typing import Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm import Decision
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import field_error, invalid
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sse import with_cancellation

MAX_QUESTIONS = 255
MAX_OPTIONS, MAX_LEVELS = 255, 10


class Question(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A question: yes or no (`noul`), one of several options, or a level of a scale.

    criteria: what the answers mean: of true and false, of each option by its name, or the levels
    from the lowest to the highest.
    """

    type: Literal["noul", "choice", "score"]
    instructions: Any
    criteria: dict[str, Any] | list[Any] | None = None


class SystemOneRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A state, of any JSON, and named questions about it."""

    state: Any
    questions: dict[str, Question]
    model: str | None = None


async def systemone(request: Request) -> Response:
    """Answer each question with probabilities."""
    body = await read(request, SystemOneRequest)
    if not 1 <= len(body.questions) <= MAX_QUESTIONS:
        raise field_error(
            "questions", f"must be 1 to {MAX_QUESTIONS}, but got {len(body.questions)}"
        )
    options = {name: _options(name, one) for name, one in body.questions.items()}
    active = await service_of(request).begin(request, body.model, "systemone")
    work = _decided(active, body, options)
    decisions = await with_cancellation(request.receive, work, active.cancel)
    prompt = sum(one.stats.n_prompt - one.stats.n_cached for one in decisions)
    answers = {
        name: _answer(question, options[name], decision)
        for (name, question), decision in zip(body.questions.items(), decisions, strict=True)
    }
    usage = {"input_tokens": prompt, "output_tokens": 0}
    return as_json({"model": active.name, "answers": answers, "usage": usage})


async def _decided(
    active: ActiveRequest, body: SystemOneRequest, options: dict[str, dict[str, str]]
) -> list[Decision]:
    works = [
        active.decide(
            _text(body.state),
            [_text(one.instructions)],
            priority=0,
            salt="",
            options=options[name] or None,
        )
        for name, one in body.questions.items()
    ]
    return [results[0] for results in await asyncio.gather(*works)]


def _options(name: str, question: Question) -> dict[str, str]:
    """Return the options with their descriptions; none for a plain yes or no. ApiError 400."""
    where, criteria = f"questions.{name}.criteria", question.criteria
    if question.type == "noul":
        if not criteria:
            return {}
        if not isinstance(criteria, dict) or not {*criteria} <= {"true", "false"}:
            raise invalid(where, "must be of true and false", criteria)
        return {"Yes": _text(criteria.get("true")), "No": _text(criteria.get("false"))}
    if question.type == "choice":
        if not isinstance(criteria, dict) or not 2 <= len(criteria) <= MAX_OPTIONS:
            raise invalid(where, f"must be an object of 2 to {MAX_OPTIONS} options", criteria)
        return {option: _text(meaning) for option, meaning in criteria.items()}
    if not isinstance(criteria, list) or not 2 <= len(criteria) <= MAX_LEVELS:
        raise invalid(where, f"must be a list of 2 to {MAX_LEVELS} levels", criteria)
    return {str(i): _text(level) for i, level in enumerate(criteria)}


def _text(value: Any) -> str:
    """Return a text unchanged, null as an empty text, and any other value as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _answer(question: Question, options: dict[str, str], decision: Decision) -> dict[str, Any]:
    shares = decision.probabilities
    if question.type == "noul":
        return {"type": "noul", "noul": shares["Yes"]}
    of_all = {"probabilities": shares, "confidence": decision.confidence}
    if question.type == "choice":
        return {"type": "choice", "choice": decision.answer, **of_all}
    mean = sum(int(level) * share for level, share in shares.items())
    return {"type": "score", "score": mean, "legend": options, **of_all}


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/systemone",
        systemone,
        "Answers typed questions about a state.",
        SystemOneRequest,
    )
]
