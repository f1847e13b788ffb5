"""POST /v1/messages, Anthropic's protocol, and /v1/messages/count_tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm.chat_request import ChatRequest
from sterna.llm.tool_choice import ToolChoice
from sterna.outputs import AnswerParser, Completion
from sterna.server import errors
from sterna.server.active_request import ActiveRequest
from sterna.server.builtin_tools import Warn, client_tools
from sterna.server.chat_messages import prompt_tokens
from sterna.server.errors import ApiError, field_error
from sterna.server.json_body import read
from sterna.server.message_blocks import joined, messages_of_blocks
from sterna.server.message_events import BlockStream, content_blocks
from sterna.server.reasoning_budget import checked_budget
from sterna.server.responder import respond
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sampling_fields import SamplingFields, checked_timeout, sampling_options
from sterna.server.settings import Settings
from sterna.server.sse import event
from sterna.server.submission import submit_chat
from sterna.server.tool_choice import parse_tools

STOPS = {"length": "max_tokens", "stop": "end_turn", "tool_calls": "tool_use"}
#: This protocol's names of chat fields, for errors.
NAMES = {
    "stop": "stop_sequences",
    "response_format.json_schema": "output_config.format",
    "response_format": "output_config.format",
}
CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class OutputConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How to answer: an effort that the template may read, and an enforced format."""

    effort: str | None = None
    format: dict[str, Any] | None = None
    task_budget: Any = None


class CountTokensRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields that determine the prompt."""

    protocol: ClassVar[str] = "messages"
    messages: list[dict[str, Any]]
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: dict[str, Any] | None = None
    thinking: dict[str, Any] | None = None
    output_config: OutputConfig | None = None
    output_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesRequest(CountTokensRequest, kw_only=True, forbid_unknown_fields=True):
    """A request for the next message, in Anthropic's form."""

    max_tokens: int
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop_sequences: list[str] | None = None
    stream: bool = False
    seed: int | None = None


async def messages(request: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    body = await read(request, MessagesRequest)
    with errors.renaming_params(NAMES):
        service = service_of(request)
        active = await service.begin(request, body.model, "msg")
        return await respond(
            request,
            active,
            MessagesResponder(body, active, service.settings),
            body.stream,
            names=NAMES,
            ping=lambda: event({"type": "ping"}, "ping"),
        )


async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation's prompt."""
    body = await read(request, CountTokensRequest)
    service = service_of(request)
    async with service.models.use(body.model) as loaded:
        warn = request.state.warnings.append
        chat = _chat(body, _tools(body, warn), warn)
        hosts = service.settings.image_hosts
        tokens = await asyncio.to_thread(prompt_tokens, loaded.llm, chat, hosts)
    return as_json({"input_tokens": len(tokens)})


class MessagesResponder:
    """The response to a messages request."""

    def __init__(self, body: MessagesRequest, active: ActiveRequest, settings: Settings) -> None:
        self.body = body
        self.active = active
        self._settings = settings
        sampling = SamplingFields(
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            stop=body.stop_sequences,
            max_tokens=body.max_tokens,
            seed=body.seed,
        )
        self._deadline_s = checked_timeout(sampling, settings.timeout)
        warn = active.warnings.append
        self.chat: ChatRequest = _chat(body, _tools(body, warn), warn)
        self.chat.options = sampling_options(sampling, active.model.llm, None, 0)
        self.chat.reasoning_budget = checked_budget(
            {"thinking.budget_tokens": (body.thinking or {}).get("budget_tokens")},
            settings.reasoning_budget,
        )
        self.chat.context_overflow = settings.context_overflow

    async def submit(self) -> None:
        """Submit the conversation to the engine."""
        form = self.body.output_format
        if form is None and self.body.output_config is not None:
            form = self.body.output_config.format
        hosts = self._settings.image_hosts
        await submit_chat(
            self.active, self.chat, (), form, image_hosts=hosts, deadline_s=self._deadline_s
        )

    def _head(self) -> dict[str, Any]:
        return {
            "id": self.active.id,
            "type": "message",
            "role": "assistant",
            "model": self.active.name,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, Any]:
        usage = self.active.usage()
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {
                "thinking_tokens": usage["completion_tokens_details"]["reasoning_tokens"]
            },
        }

    def _stop(self, done: Completion, parser: AnswerParser) -> dict[str, Any]:
        """Return the stop reason, and the stop sequence if that was the reason."""
        finished = parser.finish_reason(done.finish_reason)
        reason = STOPS.get(finished, finished)
        if finished == "stop" and done.stop_string is not None:
            reason = "stop_sequence"
        stop = done.stop_string if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stop}

    async def full(self) -> dict[str, Any]:
        """Return the whole message."""
        (done,) = await self.active.result()
        parser = done.parser()
        head = {
            **self._head(),
            "content": content_blocks(parser.message(done.text)),
            **self._stop(done, parser),
        }
        return {
            **head,
            "system_fingerprint": await self.active.fingerprint(),
            "receipt": self.active.receipt(),
        }

    def error_event(self, error: ApiError) -> bytes:
        """Make the last event of a stream that fails."""
        return event(error.anthropic_body(), "error")

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the start of the message, its blocks piece by piece, and its end."""
        yield event({"type": "message_start", "message": self._head()}, "message_start")
        (done,) = self.active.completions
        parser, blocks = done.parser(), BlockStream()
        async for _, piece in self.active.pieces():
            for delta in parser.feed(piece.text):
                for data in blocks.take(delta):
                    yield data
        for delta in parser.end():
            for data in blocks.take(delta):
                yield data
        for data in blocks.close():
            yield data
        ended = self._stop(done, parser)
        last = {"type": "message_delta", "delta": ended, "usage": self._usage()}
        yield event({**last, "receipt": self.active.receipt()}, "message_delta")
        yield event({"type": "message_stop"}, "message_stop")


def _tools(body: CountTokensRequest, warn: Warn) -> ToolChoice:
    """Convert tools and tool_choice from Anthropic's form. ApiError 400."""
    tools = {}
    for where, tool in client_tools(body.tools, ("custom",), warn).items():
        if not isinstance(tool.get("name"), str) or "input_schema" not in tool:
            raise field_error(where, "must have a name and an input_schema")
        function = {"name": tool["name"], "parameters": tool["input_schema"]}
        function |= {key: tool[key] for key in ("description", "strict") if key in tool}
        tools[where] = {"type": "function", "function": function}
    tool_choice = body.tool_choice or {"type": "auto"}
    choice: Any = CHOICES.get(str(tool_choice.get("type")))
    if tool_choice.get("type") == "tool":
        choice = {"type": "function", "function": {"name": tool_choice.get("name")}}
    if choice is None:
        raise field_error("tool_choice.type", "must be auto, any, tool or none")
    return parse_tools(tools, choice, not tool_choice.get("disable_parallel_tool_use"))


def _chat(body: CountTokensRequest, tools: ToolChoice, warn: Warn) -> ChatRequest:
    """Convert the conversation to OpenAI's form, which templates expect."""
    messages: list[dict[str, Any]] = []
    if body.system:
        system = body.system if isinstance(body.system, str) else joined(body.system, "system")
        messages.append({"role": "system", "content": system})
    for i, message in enumerate(body.messages):
        content = message.get("content")
        if isinstance(content, str):
            messages.append({"role": message.get("role"), "content": content})
        elif isinstance(content, list):
            messages += messages_of_blocks(
                message.get("role"), content, f"messages[{i}].content", warn
            )
        else:
            raise field_error(f"messages[{i}].content", "must be a text or blocks")
    options = dict(body.chat_template_kwargs or {})
    if body.output_config is not None and body.output_config.effort is not None:
        options.setdefault("reasoning_effort", body.output_config.effort)
    last = messages[-1] if messages else {"role": None}
    return ChatRequest(
        messages,
        tools=tools,
        template_options=options,
        reasoning=None if body.thinking is None else body.thinking.get("type") != "disabled",
        continue_final_message=last["role"] == "assistant" and "tool_calls" not in last,
    )


ENDPOINTS = [
    Endpoint(
        "POST",
        "/v1/messages",
        messages,
        "Answers a conversation (Anthropic's protocol).",
        MessagesRequest,
    ),
    Endpoint(
        "POST",
        "/v1/messages/count_tokens",
        count_tokens,
        "Counts the tokens of a prompt.",
        CountTokensRequest,
    ),
]
