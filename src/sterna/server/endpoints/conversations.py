"""/v1/conversations: items that responses go on from, as OpenAI's Conversations API has them."""

from __future__ import annotations

import secrets
import time
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.errors import shown
from sterna.server.errors import field_error
from sterna.server.item_pages import Item, identified, item_page
from sterna.server.json_body import read
from sterna.server.response_store import StoredResponse
from sterna.server.routing import Endpoint, as_json, service_of

MAX_ITEMS = 20


class ConversationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The first items of a conversation, and the client's metadata."""

    items: list[dict[str, Any]] | None = None
    metadata: dict[str, Any] | None = None


class ItemsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to add."""

    items: list[dict[str, Any]]


async def create(request: Request) -> Response:
    """Begin a conversation."""
    body, id = await read(request, ConversationRequest), f"conv_{secrets.token_hex(12)}"
    made = {
        "id": id,
        "object": "conversation",
        "created_at": int(time.time()),
        "metadata": body.metadata or {},
    }
    items = _checked(body.items or [])
    service_of(request).conversations.put(id, request.state.key, items, made)
    return as_json(made)


async def retrieve(request: Request) -> Response:
    """Return a conversation."""
    return as_json(_stored(request).body)


async def update(request: Request) -> Response:
    """Replace the client's metadata of a conversation."""
    body, stored = await read(request, ConversationRequest), _stored(request)
    made = {**stored.body, "metadata": body.metadata or {}}
    service_of(request).conversations.put(made["id"], stored.key, stored.items, made)
    return as_json(made)


async def delete(request: Request) -> Response:
    """Delete a conversation."""
    id = _stored(request).body["id"]
    service_of(request).conversations.drop(id)
    return as_json({"id": id, "object": "conversation.deleted", "deleted": True})


async def items(request: Request) -> Response:
    """List the items of a conversation."""
    stored = _stored(request)
    return as_json(item_page(request, stored.items, stored.body["id"]))


async def add(request: Request) -> Response:
    """Add items to a conversation."""
    body, stored = await read(request, ItemsRequest), _stored(request)
    conversations, id = service_of(request).conversations, stored.body["id"]
    conversations.extend(id, stored.key, _checked(body.items))
    every = identified([*stored.items, *body.items], id)
    data = [item.body() for item in every[len(stored.items) :]]
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return as_json({"object": "list", "data": data, "has_more": False, **ends})


async def item(request: Request) -> Response:
    """Return an item of a conversation."""
    return as_json(_item(request, _stored(request))[1].body())


async def remove(request: Request) -> Response:
    """Remove an item from a conversation, which is returned."""
    stored = _stored(request)
    at, _ = _item(request, stored)
    left = [item.body() for item in identified(stored.items, stored.body["id"])]
    del left[at]
    service_of(request).conversations.put(stored.body["id"], stored.key, left, stored.body)
    return as_json(stored.body)


def _stored(request: Request) -> StoredResponse:
    id, key = request.path_params["id"], request.state.key
    return service_of(request).conversations.get(id, key)


def _item(request: Request, stored: StoredResponse) -> tuple[int, Item]:
    wanted = request.path_params["item"]
    for i, item in enumerate(identified(stored.items, stored.body["id"])):
        if item.id == wanted:
            return i, item
    raise field_error("item", f"the conversation has no {shown(wanted)}", status=404)


def _checked(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if len(items) > MAX_ITEMS:
        raise field_error("items", f"must be at most {MAX_ITEMS}")
    return items


PATH = "/v1/conversations"
ENDPOINTS = [
    Endpoint("POST", PATH, create, "Begins a conversation.", ConversationRequest),
    Endpoint("GET", f"{PATH}/{{id}}", retrieve, "Returns a conversation."),
    Endpoint("POST", f"{PATH}/{{id}}", update, "Updates its metadata.", ConversationRequest),
    Endpoint("DELETE", f"{PATH}/{{id}}", delete, "Deletes a conversation."),
    Endpoint("GET", f"{PATH}/{{id}}/items", items, "Lists its items."),
    Endpoint("POST", f"{PATH}/{{id}}/items", add, "Adds items.", ItemsRequest),
    Endpoint("GET", f"{PATH}/{{id}}/items/{{item}}", item, "Returns an item."),
    Endpoint("DELETE", f"{PATH}/{{id}}/items/{{item}}", remove, "Removes an item."),
]
