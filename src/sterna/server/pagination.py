"""Paginated lists in OpenAI's form."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from sterna.server.errors import field_error, invalid

__all__ = ["paginate"]


def paginate(
    request: Request, items: Sequence[Any], max_limit: int, default_limit: int
) -> dict[str, Any]:
    """Return the page that the request's query asks for.

    items: newest first, each with an `id` and a `body()`. The query may have `limit`, `order` (asc
    or desc), and `after`, the id of the last item of the page before. ApiError 400.
    """
    query = request.query_params
    limit, order = query.get("limit", str(default_limit)), query.get("order", "desc")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= max_limit:
        raise invalid("limit", f"must lie in 1..{max_limit}", limit)
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc", order)
    ordered = list(items) if order == "desc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        index = next((i for i, item in enumerate(ordered) if item.id == after), None)
        if index is None:
            raise field_error("after", "must be an id of the list")
        ordered = ordered[index + 1 :]
    data = [item.body() for item in ordered[: int(limit)]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(ordered) > len(data),
    }
