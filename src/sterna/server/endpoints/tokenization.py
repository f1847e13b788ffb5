"""Tokenization and chat templates, without generation."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.llm import LLM
from sterna.llm.chat_request import ChatRequest
from sterna.llm.tool_choice import ToolChoice
from sterna.server.chat_messages import prompt_tokens, render_prompt, request_template
from sterna.server.errors import field_error
from sterna.server.json_body import read
from sterna.server.logprob_format import token_text
from sterna.server.routing import Endpoint, as_json, service_of


class TokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A text (`prompt` in vLLM, `content` in llama-server) or messages."""

    model: str | None = None
    prompt: str | None = None
    content: str | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool | None = None
    add_special: bool | None = None
    return_token_strs: bool | None = None
    with_pieces: bool | None = None


class DetokenizeRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Token ids to decode."""

    tokens: list[int]
    model: str | None = None


class ApplyTemplateRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A conversation to render."""

    messages: list[dict[str, Any]]
    model: str | None = None
    tools: list[dict[str, Any]] | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False


async def tokenize(request: Request) -> Response:
    """Return the token ids of a text, or of the prompt of messages."""
    body = await read(request, TokenizeRequest)
    texts = [x for x in (body.prompt, body.content, body.messages) if x is not None]
    if len(texts) != 1:
        raise field_error(
            "prompt", f"must be given, or content, or messages, but got {len(texts)} of them"
        )
    async with service_of(request).models.use(body.model) as loaded:
        llm, special = loaded.llm, body.add_special_tokens
        if special is None:  # llama-server has another name and another default
            special = body.add_special if body.content is None else bool(body.add_special)
        if body.messages is not None:
            hosts = service_of(request).settings.image_hosts
            ids = await asyncio.to_thread(prompt_tokens, llm, _chat(request, llm, body), hosts)
        else:
            text = str(texts[0])
            ids = await asyncio.to_thread(llm.tokenizer.encode, text, special is not False)
        answer: dict[str, Any] = {"tokens": ids, "count": len(ids), "max_model_len": llm.context}
        if body.return_token_strs:
            answer["token_strs"] = [token_text(llm.tokenizer, id) for id in ids]
        if body.with_pieces:
            pieces = [{"id": id, "piece": token_text(llm.tokenizer, id)} for id in ids]
            answer["tokens"] = pieces
    return as_json(answer)


async def detokenize(request: Request) -> Response:
    """Return the text of token ids, including special tokens."""
    body = await read(request, DetokenizeRequest)
    async with service_of(request).models.use(body.model) as loaded:
        tokenizer = loaded.llm.tokenizer
        text = await asyncio.to_thread(tokenizer.decode, body.tokens, skip_special=False)
    return as_json({"prompt": text, "content": text})


async def tokenizer_info(request: Request) -> Response:
    """Return BOS and EOS, the vocabulary size, and the chat template."""
    async with service_of(request).models.use(request.query_params.get("model")) as loaded:
        llm = loaded.llm
        named = {
            "bos_token": llm.tokenizer.bos_id,
            "eos_token": next(iter(llm.tokenizer.eos_ids), None),
        }
        spelt = {
            name: None if id is None else token_text(llm.tokenizer, id)
            for name, id in named.items()
        }
        template = llm.template.source if llm.template else None
        info = {
            **spelt,
            "eos_token_ids": list(llm.tokenizer.eos_ids),
            "bos_token_id": llm.tokenizer.bos_id,
            "vocab_size": llm.tokenizer.vocab_size,
            "chat_template": template,
            "model_max_length": llm.context,
        }
    return as_json(info)


async def apply_template(request: Request) -> Response:
    """Return the prompt of a conversation as text."""
    body = await read(request, ApplyTemplateRequest)
    async with service_of(request).models.use(body.model) as loaded:
        chat = _chat(request, loaded.llm, body)
        text = await asyncio.to_thread(render_prompt, loaded.llm, chat)
    return as_json({"prompt": text})


def _chat(request: Request, llm: LLM, body: Any) -> ChatRequest:
    trusted = service_of(request).settings.trust_request_chat_template
    options = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        options.setdefault("reasoning_effort", body.reasoning_effort)
    return ChatRequest(
        body.messages,
        template=request_template(llm, body.chat_template, trusted),
        tools=ToolChoice.of_tools(body.tools),
        template_options=options,
        add_generation_prompt=body.add_generation_prompt,
        continue_final_message=body.continue_final_message,
    )


ENDPOINTS = [
    Endpoint("POST", "/tokenize", tokenize, "Returns the token ids of a text.", TokenizeRequest),
    Endpoint(
        "POST", "/detokenize", detokenize, "Returns the text of token ids.", DetokenizeRequest
    ),
    Endpoint(
        "GET", "/tokenizer_info", tokenizer_info, "Returns special tokens and the chat template."
    ),
    Endpoint(
        "POST",
        "/apply-template",
        apply_template,
        "Returns the prompt of a conversation.",
        ApplyTemplateRequest,
    ),
]
