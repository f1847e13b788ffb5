"""Lists in pages, as OpenAI's clients turn them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from sterna.server.errors import ApiError, invalid

__all__ = ["paginate"]


def paginate(request: Request, items: Sequence[Any], most: int, usual: int) -> dict[str, Any]:
    """The page that a query asks for, of items whose `body()` has an id, the latest first.

    Of `limit` items, behind the one that `after` names, in the `order` asc or desc. ApiError 400.
    """
    query = request.query_params
    limit, order = query.get("limit", str(usual)), query.get("order", "desc")
    if not limit.isascii() or not limit.isdigit() or not 1 <= int(limit[:9]) <= most:
        raise invalid("limit", f"must lie in 1..{most}", limit)
    if order not in ("asc", "desc"):
        raise invalid("order", "must be asc or desc", order)
    found = list(items) if order == "desc" else list(reversed(items))
    after = query.get("after")
    if after is not None:
        place = next((i for i, item in enumerate(found) if item.id == after), None)
        if place is None:
            raise ApiError(400, "after: must be an id of the list", param="after")
        found = found[place + 1 :]
    data = [item.body() for item in found[: int(limit)]]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": len(found) > len(data),
    }
