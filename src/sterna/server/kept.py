"""Responses that clients may ask for again: the latest ones, within bounds."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from sterna.errors import shown
from sterna.server.bodies import encode
from sterna.server.errors import ApiError

__all__ = ["Kept", "Responses"]

MOST = 1024
MOST_BYTES = 64 << 20


@dataclass(frozen=True)
class Kept:
    """A response. key: whose; items: of the conversation, the answer's included; task: of one that
    runs in the background."""

    key: str
    items: list[dict[str, Any]]
    body: dict[str, Any]
    nbytes: int
    task: asyncio.Future[None] | None = None


class Responses:
    """Those of all keys; where there are too many, the oldest are forgotten."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Kept] = OrderedDict()
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
        kept = Kept(key, items, body, len(encode([items, body])), task)
        self._kept[id] = kept
        self._nbytes += kept.nbytes
        while len(self._kept) > MOST or self._nbytes > MOST_BYTES:
            self.drop(next(iter(self._kept)))

    def get(self, id: str, key: str, param: str = "id") -> Kept:
        """One of this key's. ApiError 404."""
        found = self._kept.get(id)
        if found is None or found.key != key:
            raise ApiError(
                404, f"{param}: no response of yours is kept as {shown(id)}", param=param,
                code="response_not_found",
            )  # fmt: skip
        return found

    def drop(self, id: str) -> None:
        """Forgets one; harmless where there is none."""
        kept = self._kept.pop(id, None)
        if kept is not None:
            self._nbytes -= kept.nbytes
