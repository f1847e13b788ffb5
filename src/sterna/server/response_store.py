"""Responses that clients may ask for again: the latest ones, within bounds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sterna.errors import shown
from sterna.server.errors import ApiError
from sterna.server.json_body import encode

__all__ = ["ResponseStore", "StoredResponse"]

MOST = 1024
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class StoredResponse:
    """A response. key: whose; items: of the conversation, the answer's included; task: of one that
    runs in the background."""

    key: str
    items: list[dict[str, Any]]
    body: dict[str, Any]
    nbytes: int
    task: asyncio.Future[None] | None = None


class ResponseStore:
    """Those of all keys; where there are too many, the oldest are forgotten."""

    def __init__(self) -> None:
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
        """Keeps one, in the place of what was kept under this id."""
        self.drop(id)
        stored = StoredResponse(key, items, body, len(encode([items, body])), task)
        self._stored[id] = stored
        self._nbytes += stored.nbytes
        while len(self._stored) > MOST or self._nbytes > MOST_BYTES:
            self.drop(next(iter(self._stored)))

    def get(self, id: str, key: str, param: str = "id") -> StoredResponse:
        """One of this key's. ApiError 404."""
        found = self._stored.get(id)
        if found is None or found.key != key:
            raise ApiError(
                404, f"{param}: no response of yours is kept as {shown(id)}", param=param,
                code="response_not_found",
            )  # fmt: skip
        return found

    def drop(self, id: str) -> None:
        """Forgets one; harmless where there is none."""
        stored = self._stored.pop(id, None)
        if stored is not None:
            self._nbytes -= stored.nbytes
