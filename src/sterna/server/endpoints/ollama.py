"""POST /api/chat and /api/generate: ollama's protocol, whose streams are lines of JSON."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm.chat_request import ChatRequest
from sterna.outputs import Stats
from sterna.server.active_request import ActiveRequest
from sterna.server.builtin_tools import client_tools
from sterna.server.errors import ApiError, invalid
from sterna.server.fill_in_the_middle import fill_prompt
from sterna.server.json_body import decode, encode, read
from sterna.server.keep_alive import unloads
from sterna.server.logprob_format import chat_logprob
from sterna.server.model_description import known_name, timestamp
from sterna.server.ollama_options import sampling_of
from sterna.server.request_images import RequestImage
from sterna.server.responder import respond
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.sampling_fields import checked_timeout, sampling_options
from sterna.server.service import Service
from sterna.server.structured_outputs import constraint_for
from sterna.server.submission import overflow_of, submit_chat, submit_prompts
from sterna.server.tool_choice import parse_tools

NS = 1e9


#: `truncate` in OpenAI's words.
_TRUNCATION = {None: None, True: "auto", False: "disabled"}


class OllamaFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of both. keep_alive: 0 unloads the model."""

    model: str
    stream: bool = True
    options: dict[str, Any] | None = None
    format: str | dict[str, Any] | None = None
    think: bool | str | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    keep_alive: Any = None
    truncate: bool | None = None
    shift: Any = None


class OllamaChatRequest(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """A conversation; without messages, the model is loaded, or unloaded."""

    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None


class OllamaGenerateRequest(OllamaFields, kw_only=True, forbid_unknown_fields=True):
    """A prompt; without one, the model is loaded, or unloaded."""

    prompt: str = ""
    suffix: str | None = None
    system: str | None = None
    raw: bool | None = None
    images: list[str] | None = None
    context: list[int] | None = None
    template: str | None = None


async def chat(request: Request) -> Response:
    """Answer a conversation, as lines of JSON or whole."""
    body = await read(request, OllamaChatRequest)
    return await _answer(request, body, body.messages or [], body.tools)


async def generate(request: Request) -> Response:
    """Answer or continue a prompt, as lines of JSON or whole."""
    body = await read(request, OllamaGenerateRequest)
    for name in ("context", "template"):
        if getattr(body, name):
            raise invalid(name, "is not supported here", "a value")
    if body.images and (body.raw or body.suffix is not None):
        raise invalid("images", "must be left out of a prompt that no template renders", "images")
    question = {"role": "user", "content": body.prompt, "images": body.images}
    said = [question] if body.prompt or body.images else []
    if body.system is not None and said:
        said.insert(0, {"role": "system", "content": body.system})
    return await _answer(request, body, said, None)


async def _answer(
    request: Request,
    body: OllamaChatRequest | OllamaGenerateRequest,
    messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None,
) -> Response:
    service = service_of(request)
    name = known_name(service, body.model) or body.model
    leaves = unloads(body.keep_alive)
    if leaves and not messages and not getattr(body, "suffix", None):
        await service.models.unload_idle(name)
        return as_json(_line(body, {"content": ""}) | {"done": True, "done_reason": "unload"})
    active = await service.begin(request, name, "ollama")
    active.unloads = leaves
    responder = OllamaResponder(body, messages, tools, active, service)
    return await respond(request, active, responder, body.stream, lines=True)


def _line(
    body: OllamaChatRequest | OllamaGenerateRequest, message: dict[str, Any]
) -> dict[str, Any]:
    """Make a line. message: in the form of a chat's."""
    head = {"model": body.model, "created_at": timestamp(time.time())}
    if isinstance(body, OllamaChatRequest):
        return {**head, "message": {"role": "assistant", **message}, "done": False}
    told = {key: text for key, text in message.items() if key == "thinking"}
    return {**head, "response": message.get("content", ""), **told, "done": False}


class OllamaResponder:
    """The response to a request of ollama's protocol."""

    def __init__(
        self,
        body: OllamaChatRequest | OllamaGenerateRequest,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None,
        active: ActiveRequest,
        service: Service,
    ) -> None:
        self.body = body
        self.active = active
        self._messages = [_message(i, message) for i, message in enumerate(messages)]
        fields = sampling_of(body.options or {}, active.warnings.append)
        top = max(1, body.top_logprobs or 0) if body.logprobs else 0
        self._deadline_s = checked_timeout(fields, service.settings.timeout)
        effort = {"reasoning_effort": body.think} if isinstance(body.think, str) else {}
        choice = body.tool_choice if isinstance(body, OllamaChatRequest) else None
        self._chat = ChatRequest(
            self._messages,
            sampling_options(fields, active.model.llm, None, top),
            tools=parse_tools(
                client_tools(tools, ("function",), active.warnings.append), choice, None
            ),
            template_options=effort,
            reasoning=None if body.think is None else body.think is not False,
            reasoning_budget=service.settings.reasoning_budget,
            context_overflow=overflow_of(_TRUNCATION[body.truncate], service.settings),
        )

    @property
    def _plain(self) -> bool:
        """Whether a prompt is continued, without the chat template."""
        body = self.body
        return isinstance(body, OllamaGenerateRequest) and (
            bool(body.raw)
            or body.suffix is not None
            or (bool(self._messages) and self.active.model.llm.template is None)
        )

    async def submit(self) -> None:
        """Submit the prompt to the engine; nothing if there is none."""
        body = self.body
        if not self._messages and not getattr(body, "suffix", None):
            return
        if not self._plain or not isinstance(body, OllamaGenerateRequest):
            form = _format(body.format)
            await submit_chat(self.active, self._chat, (), form, deadline_s=self._deadline_s)
            return
        constraint = await constraint_for(self.active, (), _format(body.format))
        options = {**self._chat.options, **self.active.options(constraint)}
        encode = partial(self._encode, body)
        await submit_prompts(self.active, encode, options, deadline_s=self._deadline_s)

    def _encode(self, body: OllamaGenerateRequest) -> list[list[int]]:
        llm = self.active.model.llm
        if body.suffix is not None:
            return [fill_prompt(llm, body.prompt, body.suffix)]
        return [llm.tokenizer.encode(body.prompt)]

    def _line(self, message: dict[str, Any], **more: Any) -> dict[str, Any]:
        return _line(self.body, message) | more

    def _ended(self) -> dict[str, Any]:
        """Return the fields about the answer in the last line."""
        loading = round(self.active.loading_s * NS)
        done = self.active.completions
        if not done:
            return {"done": True, "done_reason": "load", "load_duration": loading}
        stats: Stats = done[0].stats
        reason = done[0].finish_reason
        return {
            "done": True,
            "done_reason": "length" if reason == "length" else "stop",
            "total_duration": round((self.active.loading_s + stats.total_s) * NS),
            "load_duration": loading,
            "prompt_eval_count": stats.n_prompt,
            "prompt_eval_duration": round(stats.ttft_s * NS),
            "eval_count": stats.n_generated,
            "eval_duration": round(stats.decode_s * NS),
        }

    def _logprobs(self, entries: Any) -> dict[str, Any]:
        if not self.body.logprobs:
            return {}
        tokenizer, most = self.active.model.llm.tokenizer, self.body.top_logprobs or 0
        return {"logprobs": [chat_logprob(tokenizer, one, most) for one in entries]}

    def error_event(self, error: ApiError) -> bytes:
        """Make the last line of a stream that fails."""
        return encode({"error": error.message}) + b"\n"

    async def full(self) -> dict[str, Any]:
        """Return the whole answer."""
        if not self._submitted:
            return self._line({"content": ""}, **self._ended())
        (done,) = await self.active.result()
        message = done.parser().message(done.text)
        return self._line(
            _ollama_message(message), **self._logprobs(done.logprobs), **self._ended()
        )

    @property
    def _submitted(self) -> bool:
        return bool(self.active.completions)

    async def stream(self) -> AsyncIterator[bytes]:
        """Yield the lines: pieces, each tool call when it is whole, and the counts."""
        if self._submitted:
            (done,) = self.active.completions
            parser, calls = done.parser(), _Calls()
            async for _, piece in self.active.pieces():
                of_token = self._logprobs([piece.logprob]) if piece.logprob else {}
                for message in calls.messages(parser.feed(piece.text)):
                    yield encode(self._line(message, **of_token)) + b"\n"
                    of_token = {}
                if of_token:
                    yield encode(self._line({"content": ""}, **of_token)) + b"\n"
            for message in calls.messages(parser.end(), final=True):
                yield encode(self._line(message)) + b"\n"
        yield encode(self._line({"content": ""}, **self._ended())) + b"\n"


class _Calls:
    """Turns deltas into messages of ollama's form, whose tool calls are whole."""

    def __init__(self) -> None:
        self._name, self._arguments = "", ""

    def messages(self, deltas: list[Any], final: bool = False) -> list[dict[str, Any]]:
        """Return the messages that are certain by now."""
        entries = []
        for delta in deltas:
            if delta.kind == "tool_calls":
                if delta.id:
                    entries += self._whole()
                    self._name = delta.name
                self._arguments += delta.text
            else:
                entries += self._whole()
                kind = "thinking" if delta.kind == "reasoning_content" else "content"
                entries.append({"content": "", kind: delta.text})
        return entries + (self._whole() if final else [])

    def _whole(self) -> list[dict[str, Any]]:
        if not self._name:
            return []
        call = _call(self._name, self._arguments)
        self._name, self._arguments = "", ""
        return [{"content": "", "tool_calls": [call]}]


def _call(name: str, arguments: str) -> dict[str, Any]:
    try:
        decoded = decode(arguments.encode(), dict[str, Any])
    except ApiError:  # cut off by the limit of tokens
        decoded = {}
    return {"function": {"name": name, "arguments": decoded}}


def _ollama_message(message: dict[str, Any]) -> dict[str, Any]:
    """Return a whole message in ollama's form."""
    entries: dict[str, Any] = {"content": message.get("content") or ""}
    if message.get("reasoning_content"):
        entries["thinking"] = message["reasoning_content"]
    if message.get("tool_calls"):
        functions = [call["function"] for call in message["tool_calls"]]
        entries["tool_calls"] = [_call(f["name"], f["arguments"]) for f in functions]
    return entries


def _message(i: int, message: dict[str, Any]) -> dict[str, Any]:
    """Put a message into OpenAI's form, its images before its text. ApiError 400."""
    entries = {k: v for k, v in message.items() if k not in ("images", "thinking", "tool_name")}
    if message.get("thinking"):
        entries["reasoning_content"] = message["thinking"]
    if message.get("tool_name"):
        entries["name"] = message["tool_name"]
    entries.setdefault("content", "")
    if message.get("images"):
        entries["content"] = [
            *_images(message["images"], f"messages[{i}].images"),
            {"type": "text", "text": entries["content"]},
        ]
    return entries


def _images(images: Any, where: str) -> list[dict[str, Any]]:
    if not isinstance(images, list) or not all(isinstance(one, str) and one for one in images):
        raise invalid(where, "must be a list of images in base64", images)
    return [
        {"type": "image", "image": RequestImage(_data_url(one), f"{where}[{i}]")}
        for i, one in enumerate(images)
    ]


def _data_url(image: str) -> str:
    """Return an image in base64 as a data: URL; its content says which format it has."""
    return image if image[:5].lower() == "data:" else f"data:image/any;base64,{image}"


def _format(value: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Return OpenAI's `response_format` for `format`. ApiError 400."""
    if not value:
        return None
    if value == "json":
        return {"type": "json_object"}
    if isinstance(value, str):
        raise invalid("format", "must be json or a JSON schema", value)
    return {"type": "json_schema", "json_schema": {"schema": value, "strict": False}}


ENDPOINTS = [
    Endpoint("POST", "/api/chat", chat, "Answers a conversation (ollama).", OllamaChatRequest),
    Endpoint(
        "POST", "/api/generate", generate, "Answers a prompt (ollama).", OllamaGenerateRequest
    ),
]
