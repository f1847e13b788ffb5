"""/v1/responses/ID/input_items and /v1/responses/input_tokens: inputs and their tokens."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from sterna.server.chat_messages import prompt_tokens
from sterna.server.endpoints.responses import (
    ResponsesRequest,
    chat_of,
    earlier_items,
    new_items,
    stored_response,
    tools_of,
)
from sterna.server.item_pages import item_page
from sterna.server.json_body import read
from sterna.server.routing import Endpoint, as_json, service_of


async def input_items(request: Request) -> Response:
    """List the items that a stored response answers, those of earlier ones included."""
    stored = stored_response(request)
    count = len(stored.items) - len(stored.body["output"])
    return as_json(item_page(request, stored.items[:count], stored.body["id"]))


async def input_tokens(request: Request) -> Response:
    """Count the tokens of a response's prompt."""
    body = await read(request, ResponsesRequest)
    service, warn, key = service_of(request), request.state.warnings.append, request.state.key
    items = earlier_items(body, service, key) + new_items(body, service, key)
    chat, hosts = chat_of(body, items, tools_of(body, warn), warn), service.settings.image_hosts
    async with service.models.use(body.model) as loaded:
        tokens = await asyncio.to_thread(prompt_tokens, loaded.llm, chat, hosts)
    return as_json({"object": "response.input_tokens", "input_tokens": len(tokens)})


ENDPOINTS = [
    Endpoint("GET", "/v1/responses/{id}/input_items", input_items, "Lists what it answers."),
    Endpoint(
        "POST",
        "/v1/responses/input_tokens",
        input_tokens,
        "Counts the tokens of a prompt.",
        ResponsesRequest,
    ),
]
