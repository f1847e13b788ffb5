"""`ResponseStore`: responses and conversations that clients can retrieve later.

They are in memory, within limits.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sterna.errors import shown
from sterna.server.errors import field_error
from sterna.server.item_pages import identified
from sterna.server.json_body import encode

__all__ = ["ResponseStore", "StoredResponse"]

MOST = 1024
MOST_BYTES = 64 << 20
#: Ids of items contain their response's: msg_resp-0a1b_2 is of resp-0a1b.
_OWNER = re.compile(r"[a-z]+_(resp-[0-9a-f]+)_[0-9]+")


@dataclass(frozen=True)
class StoredResponse:
    """A response.

    Attributes:
        key: the owner's.
        items: the conversation, including the answer.
        task: the background task that still computes it.
    """

    key: str
    items: list[dict[str, Any]]
    body: dict[str, Any]
    nbytes: int
    task: asyncio.Future[None] | None = None


class ResponseStore:
    """The responses of all keys, or other objects that `kind` names.

    Beyond the limits, the oldest are dropped.
    """

    def __init__(self, kind: str = "response") -> None:
        self._kind = kind
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._nbytes = 0

    def put(
        self,
        id: str,
        key: str,
        items: list[dict[str, Any]],
        body: dict[str, Any],
        task: asyncio.Future[None] | None = None,
    ) -> None:
        """Store a response; replaces one of the same id."""
        self.drop(id)
        stored = StoredResponse(key, items, body, len(encode([items, body])), task)
        self._stored[id] = stored
        self._nbytes += stored.nbytes
        while len(self._stored) > MOST or self._nbytes > MOST_BYTES:
            self.drop(next(iter(self._stored)))

    def get(self, id: str, key: str, param: str = "id") -> StoredResponse:
        """Return a response of this key. ApiError 404."""
        stored = self._stored.get(id)
        if stored is None or stored.key != key:
            raise field_error(
                param,
                f"you have no stored {self._kind} {shown(id)}",
                status=404,
                code=f"{self._kind}_not_found",
            )
        return stored

    def item(self, id: str, key: str, param: str) -> dict[str, Any]:
        """Return an item of this key by its id, which names the response that has it.

        ApiError 404.
        """
        owner = _OWNER.fullmatch(id)
        stored = self._stored.get(owner[1]) if owner else None
        if stored is not None and stored.key == key:
            for item in identified(stored.items, stored.body["id"]):
                if item.id == id:
                    return item.body()
        raise field_error(
            param,
            f"you have no stored item {shown(id)}; send the item itself",
            status=404,
            code="item_not_found",
        )

    def extend(self, id: str, key: str, items: list[dict[str, Any]]) -> None:
        """Add items to those of an id; harmless if it was dropped."""
        stored = self._stored.get(id)
        if stored is not None and stored.key == key:
            self.put(id, key, [*stored.items, *items], stored.body)

    def drop(self, id: str) -> None:
        """Delete a response; harmless if there is none."""
        stored = self._stored.pop(id, None)
        if stored is not None:
            self._nbytes -= stored.nbytes
