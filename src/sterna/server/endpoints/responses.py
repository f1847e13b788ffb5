"""/v1/responses: OpenAI's Responses API, whose responses are stored."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import cached_property
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm.chat_request import ChatRequest
from sterna.outputs import AnswerParser
from sterna.server import errors
from sterna.server.active_request import ActiveRequest
from sterna.server.builtin_tools import Warn
from sterna.server.custom_tools import parser_of
from sterna.server.errors import ApiError, field_error
from sterna.server.json_body import read
from sterna.server.logprob_format import ContentLogprobs
from sterna.server.responder import respond
from sterna.server.response_events import (
    ResponseEventStream,
    output_items,
    response_status,
    response_usage,
)
from sterna.server.response_items import messages_of
from sterna.server.response_store import StoredResponse
from sterna.server.response_tools import ResponseTools
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sampling_fields import (
    SamplingFields,
    check_top_logprobs,
    checked_timeout,
    sampling_options,
)
from sterna.server.service import Service
from sterna.server.submission import overflow_of, submit_chat

#: This protocol's names of chat fields, for errors.
NAMES = {
    "messages": "input",
    "response_format.json_schema": "text.format",
    "response_format": "text.format",
    "max_tokens": "max_output_tokens",
}


class ResponsesRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to answer, after the items of an earlier response if one is named."""

    protocol: ClassVar[str] = "responses"
    input: str | list[dict[str, Any]]
    model: str | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning: dict[str, Any] | None = None
    stream: bool | None = None
    store: bool | None = None
    background: bool | None = None
    seed: int | None = None
    metadata: Any = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    prompt_cache_key: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    truncation: str | None = None


async def create(request: Request) -> Response:
    """Answer items: whole, as a stream, or in the background."""
    body = await read(request, ResponsesRequest)
    if body.background and body.stream:
        raise field_error("background", "cannot be combined with stream")
    with errors.renaming_params(NAMES):
        service = service_of(request)
        active = await service.begin(request, body.model, "resp")
        responder = ResponsesResponder(body, active, service)
        if not body.background:
            return await respond(
                request, active, responder, bool(body.stream), names=NAMES, ping=responder.ping
            )
    request.state.active = None  # the answer outlives this HTTP request
    task = asyncio.ensure_future(_in_background(responder))
    service.responses.put(active.id, active.key, responder.items, responder.snapshot(), task)
    return as_json(responder.snapshot())


async def _in_background(responder: ResponsesResponder) -> None:
    """Compute an answer that no connection waits for."""
    active = responder.active
    try:
        await responder.submit()
        await responder.full()
    except Exception as error:
        said = errors.rename_param(errors.to_api_error(error), active.names)
        said = errors.rename_param(said, NAMES)
        cancelled = said.code == "cancelled"  # before it began
        responder.status = "cancelled" if cancelled else "failed"
        responder.error = None if cancelled else said.body()["error"]
        responder.save()
    finally:
        responder.service.end(active)


async def retrieve(request: Request) -> Response:
    """Return a stored response."""
    return as_json(stored_response(request).body)


async def cancel(request: Request) -> Response:
    """Cancel a response in the background."""
    stored = stored_response(request)
    active = service_of(request).active.get(stored.body["id"])
    if active is not None:
        active.cancel()
    if stored.task is not None:
        await asyncio.wait({stored.task})
    return as_json(stored_response(request).body)


async def delete(request: Request) -> Response:
    """Delete a stored response."""
    id = stored_response(request).body["id"]
    service_of(request).responses.drop(id)
    return as_json({"id": id, "object": "response", "deleted": True})


def stored_response(request: Request) -> StoredResponse:
    """Return the response that a path names. ApiError 404."""
    id, key = request.path_params["id"], request.state.key
    return service_of(request).responses.get(id, key)


class ResponsesResponder:
    """The response to a responses request.

    items: the conversation before the answer. new: those of them that the request has.
    """

    def __init__(self, body: ResponsesRequest, active: ActiveRequest, service: Service) -> None:
        self.body = body
        self.active = active
        self.service = service
        self.new: list[dict[str, Any]] = new_items(body, service, active.key)
        self.items: list[dict[str, Any]] = earlier_items(body, service, active.key) + self.new
        sampling = SamplingFields(
            temperature=body.temperature,
            top_p=body.top_p,
            max_tokens=body.max_output_tokens,
            seed=body.seed,
        )
        count = logprobs_of(body)
        self._deadline_s = checked_timeout(sampling, service.settings.timeout)
        self.tools: ResponseTools = tools_of(body, active.warnings.append)
        self.chat: ChatRequest = chat_of(body, self.items, self.tools, active.warnings.append)
        self.chat.options = sampling_options(
            sampling, active.model.llm, None, 0 if count is None else max(1, count)
        )
        self.chat.reasoning_budget = service.settings.reasoning_budget
        self.chat.context_overflow = overflow_of(body.truncation, service.settings)
        self.logprobs: ContentLogprobs = ContentLogprobs(active.model.llm.tokenizer, count)
        self.status: str = "in_progress"
        self.error: dict[str, Any] | None = None
        self.fingerprint: str = ""
        self._output: list[dict[str, Any]] = []

    async def submit(self) -> None:
        """Submit the conversation to the engine."""
        await submit_chat(
            self.active,
            self.chat,
            (),
            (self.body.text or {}).get("format"),
            image_hosts=self.service.settings.image_hosts,
            salt=self.body.prompt_cache_key or "",
            deadline_s=self._deadline_s,
        )
        self.fingerprint = await self.active.fingerprint()

    def snapshot(self) -> dict[str, Any]:
        """Return the response in its present state."""
        body, ended = self.body, self.status not in ("in_progress", "queued")
        cut = self.status == "incomplete"
        return {
            "id": self.active.id,
            "object": "response",
            "created_at": self.active.created,
            "status": self.status,
            "background": bool(body.background),
            "error": self.error,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self.active.name,
            "output": self._output,
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "conversation": None if body.conversation is None else {"id": conversation_id(body)},
            "reasoning": body.reasoning,
            "store": body.store is not False,
            "temperature": body.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_p": body.top_p,
            "top_logprobs": body.top_logprobs or 0,
            "truncation": "disabled" if self.chat.context_overflow == "error" else "auto",
            "usage": response_usage(self.active) if ended and self.active.completions else None,
            **(self._receipt() if ended and self.active.completions else {}),
        }

    def _receipt(self) -> dict[str, Any]:
        return {"system_fingerprint": self.fingerprint, "receipt": self.active.receipt()}

    async def full(self) -> dict[str, Any]:
        """Return the whole response, which is stored unless `store` is false."""
        if self.logprobs.count is not None:  # which tokens make the content shows by pieces
            parser = self._parser()
            async for _, piece in self.active.pieces():
                self.logprobs.take(piece, parser.feed(piece.text), parser.unread)
            self.logprobs.take(None, parser.end(), parser.unread)
        else:
            await self.active.result()
        (done,) = self.active.completions
        parser = self._parser()
        return self.finish(done.finish_reason, parser, parser.message(done.text))

    def _parser(self) -> AnswerParser:
        return parser_of(self.active.completions[0], self.tools.choice)

    def finish(self, reason: str, parser: AnswerParser, message: dict[str, Any]) -> dict[str, Any]:
        """Store and return the final response."""
        self._output = output_items(
            message, self.active.id, reason, self.logprobs.entries, self.tools
        )
        self.status = response_status(reason)
        self.save()
        return self.snapshot()

    def save(self) -> None:
        """Store the response in its present state, unless `store` is false."""
        if self.body.store is not False:
            active = self.active
            self.service.responses.put(
                active.id, active.key, [*self.items, *self._output], self.snapshot()
            )
        answered = self.status in ("completed", "incomplete")
        if answered and (id := conversation_id(self.body)) is not None:
            new = [*self.new, *self._output]
            self.service.conversations.extend(id, self.active.key, new)

    def stream(self) -> AsyncIterator[bytes]:
        return self._stream.stream()

    def ping(self) -> bytes:
        """Make an event that says that the response goes on."""
        return self._stream.ping()

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        return self._stream.error_event(error)

    @cached_property
    def _stream(self) -> ResponseEventStream:
        return ResponseEventStream(
            self.active, self._parser(), self.logprobs, self.tools, self.snapshot, self.finish
        )


def earlier_items(body: ResponsesRequest, service: Service, key: str) -> list[dict[str, Any]]:
    """Return the items of an earlier response or a conversation. ApiError 400 or 404."""
    items: list[dict[str, Any]] = []
    if body.previous_response_id is not None and body.conversation is not None:
        raise field_error("conversation", "cannot be combined with previous_response_id")
    if body.previous_response_id is not None:
        name = "previous_response_id"
        items += service.responses.get(body.previous_response_id, key, name).items
    if (id := conversation_id(body)) is not None:
        items += service.conversations.get(id, key, "conversation").items
    return items


def new_items(body: ResponsesRequest, service: Service, key: str) -> list[dict[str, Any]]:
    """Return the items of a request; a text becomes a message of the user.

    References, which clients that rely on the store send, become the items they name. ApiError 404.
    """
    input_field, items = body.input, []
    if isinstance(input_field, str):
        return [{"role": "user", "content": input_field}]
    for i, item in enumerate(input_field):
        kind, id = item.get("type"), item.get("id")
        if kind == "item_reference" or (kind is None and "role" not in item and id is not None):
            item = service.responses.item(str(id), key, f"input[{i}].id")
        items.append(item)
    return items


def logprobs_of(body: ResponsesRequest) -> int | None:
    """Return how many alternatives of each token a request asks for; None: no log-probabilities.

    ApiError 400.
    """
    if body.top_logprobs is not None:
        check_top_logprobs(body.top_logprobs)
    asked = "message.output_text.logprobs" in (body.include or ())
    return body.top_logprobs or 0 if asked or body.top_logprobs else None


def conversation_id(body: ResponsesRequest) -> str | None:
    """Return the id of the conversation that a request belongs to."""
    conversation = body.conversation
    return str(conversation.get("id")) if isinstance(conversation, dict) else conversation


def chat_of(
    body: ResponsesRequest, items: list[dict[str, Any]], tools: ResponseTools, warn: Warn
) -> ChatRequest:
    """Convert items to a chat. ApiError 400."""
    messages = messages_of(items, warn)
    if body.instructions:
        messages.insert(0, {"role": "system", "content": body.instructions})
    options = dict(body.chat_template_kwargs or {})
    if (effort := (body.reasoning or {}).get("effort")) is not None:
        options.setdefault("reasoning_effort", effort)
    return ChatRequest(messages, tools=tools.choice, template_options=options)


def tools_of(body: ResponsesRequest, warn: Warn) -> ResponseTools:
    """Return the tools of a request. ApiError 400."""
    return ResponseTools.of_request(body.tools, body.tool_choice, body.parallel_tool_calls, warn)


ENDPOINTS = [
    Endpoint("POST", "/v1/responses", create, "Answers items.", ResponsesRequest),
    Endpoint("GET", "/v1/responses/{id}", retrieve, "Returns a stored response."),
    Endpoint("DELETE", "/v1/responses/{id}", delete, "Deletes a stored response."),
    Endpoint("POST", "/v1/responses/{id}/cancel", cancel, "Cancels a response in the background."),
]
