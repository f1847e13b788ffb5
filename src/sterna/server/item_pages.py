"""Items of responses and conversations, in pages of OpenAI's form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

from sterna.server.pagination import paginate

__all__ = ["Item", "identified", "item_page"]

MAX_LIMIT, DEFAULT_LIMIT = 100, 20


@dataclass(frozen=True)
class Item:
    """An item with its id."""

    id: str
    fields: dict[str, Any]

    def body(self) -> dict[str, Any]:
        """Return the item as clients get it: a message's text is a part of it."""
        item, content = (
            {"type": "message", **self.fields, "id": self.id},
            self.fields.get("content"),
        )
        if item["type"] == "message" and isinstance(content, str):
            kind = "output_text" if item.get("role") == "assistant" else "input_text"
            item["content"] = [{"type": kind, "text": content}]
        return item


def identified(items: list[dict[str, Any]], owner: str) -> list[Item]:
    """Give an id to each item that has none; owner: the id of their response or conversation."""
    return [Item(item.get("id") or f"item_{owner}_{i}", item) for i, item in enumerate(items)]


def item_page(request: Request, items: list[dict[str, Any]], owner: str) -> dict[str, Any]:
    """Return the page of items that the request's query asks for."""
    return paginate(request, identified(items, owner)[::-1], MAX_LIMIT, DEFAULT_LIMIT)
