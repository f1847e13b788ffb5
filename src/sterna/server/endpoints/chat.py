"""POST /v1/chat/completions: the next message of a conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm import LLM
from sterna.llm.chat_request import ChatRequest
from sterna.outputs import AnswerParser, Delta
from sterna.server.active_request import ActiveRequest
from sterna.server.builtin_tools import client_tools
from sterna.server.chat_messages import join_text_parts, request_template
from sterna.server.custom_tools import CUSTOM, parser_of
from sterna.server.errors import ApiError, field_error
from sterna.server.json_body import read
from sterna.server.logprob_format import chat_logprob
from sterna.server.reasoning_budget import checked_budget
from sterna.server.responder import respond
from sterna.server.routing import Endpoint, service_of
from sterna.server.sampling_fields import (
    SamplingFields,
    check_top_logprobs,
    checked_n,
    checked_priority,
    checked_timeout,
    sampling_options,
)
from sterna.server.settings import Settings
from sterna.server.sse import DONE, event
from sterna.server.structured_outputs import asked_of
from sterna.server.submission import overflow_of, submit_chat
from sterna.server.tool_choice import parse_tools

#: Names of the budget of reasoning, as llama.cpp's server, vLLM and Qwen have it.
BUDGETS = (
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_token_budget",
    "thinking_budget",
)


class Prediction(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Predicted output. Affects speed, never the result."""

    content: str | list[Any]
    type: str = "content"


class ChatCompletionRequest(SamplingFields, kw_only=True, forbid_unknown_fields=True):
    """A request for the next message of a conversation."""

    protocol: ClassVar[str] = "chat"
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
    reasoning_budget_tokens: int | None = None
    thinking_budget_tokens: int | None = None
    thinking_token_budget: int | None = None
    thinking_budget: int | None = None
    documents: list[dict[str, Any]] | None = None
    truncation: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


async def chat(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    body = await read(request, ChatCompletionRequest)
    _check(body)
    service = service_of(request)
    active = await service.begin(request, body.model, "chatcmpl", body)
    return await respond(
        request, active, ChatResponder(body, active, service.settings), bool(body.stream)
    )


def _check(body: ChatCompletionRequest) -> None:
    """Raise ApiError 400 for fields that contradict each other. Sets max_tokens."""
    if body.top_logprobs:
        if not body.logprobs:
            raise field_error("top_logprobs", "needs logprobs: true")
        check_top_logprobs(body.top_logprobs)
    if body.max_completion_tokens is not None:
        if body.max_tokens not in (None, body.max_completion_tokens):
            raise field_error("max_completion_tokens", "must equal max_tokens")
        body.max_tokens = body.max_completion_tokens


class ChatResponder:
    """The response to a chat completion request."""

    def __init__(
        self, body: ChatCompletionRequest, active: ActiveRequest, settings: Settings
    ) -> None:
        self.body = body
        self.active = active
        self.llm: LLM = active.model.llm
        self._settings = settings
        self.n: int = checked_n(body)
        variables = dict(body.chat_template_kwargs or {})
        if body.reasoning_effort is not None:
            variables.setdefault("reasoning_effort", body.reasoning_effort)
        tools = client_tools(body.tools, ("function", "custom"), active.warnings.append)
        self.chat: ChatRequest = ChatRequest(
            body.messages,
            self._options(),
            n=self.n,
            tools=parse_tools(tools, body.tool_choice, body.parallel_tool_calls),
            documents=body.documents,
            template_options=variables,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            template=request_template(
                self.llm, body.chat_template, settings.trust_request_chat_template
            ),
            reasoning_budget=checked_budget(
                {name: getattr(body, name) for name in BUDGETS}, settings.reasoning_budget
            ),
            context_overflow=overflow_of(body.truncation, settings),
        )

    async def submit(self) -> None:
        """Submit the conversation to the engine."""
        body, settings = self.body, self._settings
        await submit_chat(
            self.active,
            self.chat,
            asked_of(body),
            body.response_format,
            image_hosts=settings.image_hosts,
            salt=body.cache_salt or body.prompt_cache_key or "",
            priority=checked_priority(body),
            deadline_s=checked_timeout(body, settings.timeout),
        )

    def _options(self) -> dict[str, Any]:
        body = self.body
        top = max(1, body.top_logprobs or 0) if body.logprobs else 0
        return {**sampling_options(body, self.llm, None, top), "prediction": self._prediction()}

    def _prediction(self) -> list[int] | None:
        if self.body.prediction is None:
            return None
        content = self.body.prediction.content
        text = (
            content if isinstance(content, str) else join_text_parts(content, "prediction.content")
        )
        return self.llm.tokenizer.encode(text, add_special=False)

    def _parsers(self) -> list[AnswerParser]:
        return [parser_of(done, self.chat.tools) for done in self.active.completions]

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        return event(error.body())

    async def full(self) -> dict[str, Any]:
        """Return the response with all choices."""
        choices = []
        for i, (done, parser) in enumerate(
            zip(await self.active.result(), self._parsers(), strict=True)
        ):
            message = parser.message(done.text)
            choice: dict[str, Any] = {
                "index": i,
                "message": message,
                "logprobs": self._logprobs(done.logprobs),
                "finish_reason": parser.finish_reason(done.finish_reason),
            }
            if self.body.return_token_ids:
                choice["token_ids"] = done.tokens
            choices.append(choice)
        return {
            **await self.active.head("chat.completion"),
            "choices": choices,
            "usage": self.active.usage(),
            "receipt": self.active.receipt(),
            **self._prompt_ids(),
        }

    def _prompt_ids(self) -> dict[str, Any]:
        return {"prompt_token_ids": self.active.prompts[0]} if self.body.return_token_ids else {}

    def _logprobs(self, entries: Any) -> dict[str, Any] | None:
        if not self.body.logprobs:
            return None
        most, tokenizer = self.body.top_logprobs or 0, self.llm.tokenizer
        return {"content": [chat_logprob(tokenizer, one, most) for one in entries], "refusal": None}

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the chunks: roles, pieces, finish reasons, and the usage if asked for."""
        head = await self.active.head("chat.completion.chunk")
        asked = self.body.stream_options
        wants_usage = asked is not None and asked.include_usage
        if wants_usage:
            head["usage"] = None
        parsers = self._parsers()

        def chunk(i: int, delta: Any, finish: str | None = None, **of_token: Any) -> bytes:
            choice = {"index": i, "delta": delta, "logprobs": None, "finish_reason": finish}
            if asked is not None and wants_usage and asked.continuous_usage_stats:
                head["usage"] = self.active.usage()
            return event({**head, "choices": [{**choice, **of_token}]})

        for i in range(self.n):
            yield event({**head, **self._prompt_ids(), "choices": [_opening(i)]})
        async for i, piece in self.active.pieces():
            deltas = parsers[i].feed(piece.text)
            of_token: dict[str, Any] = {}
            if piece.logprob:
                of_token["logprobs"] = self._logprobs([piece.logprob])
            if self.body.return_token_ids:
                of_token["token_ids"] = [piece.token]
            for delta in deltas or ([Delta("content", "")] if of_token else []):
                yield chunk(i, _chat_delta(delta), **of_token)
                of_token = {}  # only once per token
        *before, last = enumerate(self.active.completions)
        for i, done in (*before, last):
            for delta in parsers[i].end():
                yield chunk(i, _chat_delta(delta))
            if i == last[0]:
                head["receipt"] = self.active.receipt()
            yield chunk(i, {}, parsers[i].finish_reason(done.finish_reason))
        if wants_usage:
            yield event({**head, "choices": [], "usage": self.active.usage()})
        yield DONE


def _chat_delta(delta: Delta) -> dict[str, Any]:
    """Make the `delta` of a chunk."""
    if delta.kind == CUSTOM:
        custom: dict[str, Any] = {"index": delta.index, "custom": {"input": delta.text}}
        if delta.id:
            custom |= {"id": delta.id, "type": "custom"}
            custom["custom"] = {"name": delta.name, "input": delta.text}
        return {"tool_calls": [custom]}
    if delta.kind != "tool_calls":
        return {delta.kind: delta.text}
    return {"tool_calls": [delta.tool_call]}


def _opening(i: int) -> dict[str, Any]:
    """Make the first chunk of a choice."""
    delta = {"role": "assistant", "content": ""}
    return {"index": i, "delta": delta, "logprobs": None, "finish_reason": None}


ENDPOINTS = [
    Endpoint("POST", "/v1/chat/completions", chat, "Answers a conversation.", ChatCompletionRequest)
]
