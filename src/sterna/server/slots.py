"""`Slots`: llama.cpp's slots, by which its clients save and restore prompts.

A slot here is a number for a request while it runs, and the text that the last one left there. It
reserves nothing: any number of requests may share one, and none waits for one.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Iterable
from typing import NamedTuple

from sterna.engine import PrefixCache, Request
from sterna.engine.kv_cache.prefix_files import Prefix, restore_prefix, save_prefix
from sterna.server.active_request import ActiveRequest
from sterna.server.errors import invalid

__all__ = ["Prefix", "PrefixCache", "Slots", "restore_prefix", "save_prefix"]

#: llama.cpp's word for a slot that the server chooses.
ANY = -1

#: Seconds within which the engine has put an ended request's pages into the cache.
SETTLED_S = 5.0


class _Held(NamedTuple):
    """The prefix of a slot. request: the ended request, which may still have the pages."""

    prefix: Prefix
    request: weakref.ref[Request] | None = None

    @property
    def settled(self) -> bool:
        """Whether the cache has the pages."""
        request = None if self.request is None else self.request()
        return request is None or request.sequence.length == 0


class Slots:
    """The slots of each API key and model. count: how many each has."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._held: dict[tuple[str, str, int], _Held] = {}

    def checked(self, slot: int) -> int:
        """Return a slot's number. ApiError 400 if there is none of it."""
        if not 0 <= slot < self.count:
            raise invalid("id_slot", f"must lie in 0..{self.count - 1}", slot)
        return slot

    def begin(self, active: ActiveRequest, others: Iterable[ActiveRequest]) -> None:
        """Give a request the first slot that none of its owner's others uses, or slot 0."""
        taken = {o.slot for o in others if (o.key, o.model) == (active.key, active.model)}
        active.slot = next((slot for slot in range(self.count) if slot not in taken), 0)

    def choose(self, active: ActiveRequest, slot: int | None) -> None:
        """Give a request the slot that it asks for, if any. ApiError 400."""
        if slot not in (None, ANY):
            active.slot = self.checked(slot)

    def leave(self, active: ActiveRequest) -> None:
        """Keep the text of an ended request in its slot."""
        request = active.last_request
        if request is not None:
            prefix = Prefix(request.prefix_keys.copy(), request.salt)
            self._held[active.key, active.model.name, active.slot] = _Held(
                prefix, weakref.ref(request)
            )

    def put(self, key: str, model: str, slot: int, prefix: Prefix) -> None:
        """Replace what a slot holds."""
        self._held[key, model, slot] = _Held(prefix)

    def held(self, key: str, model: str, slot: int) -> Prefix | None:
        """Return what a slot holds; None before its first request."""
        held = self._held.get((key, model, slot))
        return None if held is None else held.prefix

    async def settle(self, key: str, model: str, slot: int) -> None:
        """Wait until the cache has the pages of a slot's last request."""
        until = time.monotonic() + SETTLED_S
        held = self._held.get((key, model, slot))
        while held is not None and not held.settled and time.monotonic() < until:
            await asyncio.sleep(0.005)

    def drop(self, key: str, model: str, slot: int) -> None:
        """Empty a slot."""
        self._held.pop((key, model, slot), None)
