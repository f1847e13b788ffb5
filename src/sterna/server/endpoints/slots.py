"""llama.cpp's /slots: lists running requests; saves, restores and erases prompts."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError, field_error, invalid
from sterna.server.json_body import decode, read_bytes
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.slots import Prefix, PrefixCache, Slots, restore_prefix, save_prefix

ACTIONS = ("save", "restore", "erase")


class Slot(NamedTuple):
    """A slot of a key and a model."""

    slots: Slots
    key: str
    model: str
    id: int

    @property
    def prefix(self) -> Prefix | None:
        """The prefix that it has."""
        return self.slots.held(self.key, self.model, self.id)


class SlotRequest(msgspec.Struct, kw_only=True):
    """The name of the file to save to or to restore from; erasing needs none."""

    filename: str | None = None
    model: str | None = None


async def slots(request: Request) -> Response:
    """List the slots, and which of the caller's own requests each has."""
    service = service_of(request)
    own = {one.slot: one for one in service.active.values() if one.key == request.state.key}
    rows = [_row(i, own.get(i)) for i in range(service.slots.count)]
    free = any(not row["is_processing"] for row in rows)
    if "fail_on_no_slot" in request.query_params and not free:
        raise ApiError(503, "There is no free slot.", code="no_slot", retry_after=1)
    return as_json(rows)


def _row(slot: int, active: ActiveRequest | None) -> dict[str, Any]:
    row: dict[str, Any] = {"id": slot, "speculative": False, "is_processing": active is not None}
    if active is None:
        return row
    usage, llm = active.usage(), active.model.llm
    params = active.sampling
    most = params.get("max_tokens")
    count = usage["completion_tokens"]
    return row | {
        "id_task": active.id,
        "n_ctx": llm.context,
        "speculative": llm.speculates,
        "n_prompt_tokens": usage["prompt_tokens"],
        "n_prompt_tokens_cache": usage["prompt_tokens_details"]["cached_tokens"],
        "params": params,
        "next_token": [
            {
                "has_next_token": True,
                "has_new_line": any("\n" in done.text for done in active.completions),
                "n_remain": -1 if most is None else most - count,
                "n_decoded": count,
            }
        ],
    }


async def act(request: Request) -> Response:
    """Save, restore or erase what a slot holds, by `action`. ApiError 400, 501."""
    service, query = service_of(request), request.query_params
    data = await read_bytes(request)
    body = decode(data, SlotRequest) if data.strip() else SlotRequest()
    text = request.path_params["slot"]
    if not text.isascii() or not text.isdigit() or len(text) > 9:
        raise invalid("id_slot", "must be a whole number", text)
    name = body.model or query.get("model") or None
    async with service.models.use(name) as loaded:
        cache = loaded.llm.prefix_cache
        if cache is None or not cache.on_disk:
            raise ApiError(
                501, "This server does not support slots action. Start it with `--cache-disk`"
            )
        id, action = service.slots.checked(int(text)), query.get("action", "")
        if action not in ACTIONS:
            raise invalid("action", f"must be one of {', '.join(ACTIONS)}", action)
        slot = Slot(service.slots, request.state.key, loaded.name, id)
        await service.slots.settle(slot.key, slot.model, id)
        if action == "erase":
            return as_json(await _erased(cache, slot))
        return as_json(await _copied(action, cache, slot, body.filename))


async def _copied(action: str, cache: PrefixCache, slot: Slot, file: str | None) -> dict[str, Any]:
    """Save a slot's prefix to a file, or restore it from there. ApiError 400."""
    began = time.perf_counter()
    if not file:
        raise field_error("filename", "must be given", code="missing_parameter")
    if action == "save":
        prefix = slot.prefix
        if prefix is None:
            raise invalid("id_slot", "must be of a slot that has had a request", slot.id)
        stored = await asyncio.to_thread(save_prefix, cache, slot.key, file, prefix)
    else:
        stored = await asyncio.to_thread(restore_prefix, cache, slot.key, file)
        slot.slots.put(slot.key, slot.model, slot.id, stored.prefix)
    tokens, nbytes = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    return {
        "id_slot": slot.id,
        "filename": file,
        tokens: stored.n_tokens,
        nbytes: stored.nbytes,
        "timings": {f"{action}_ms": round(1e3 * (time.perf_counter() - began), 3)},
    }


async def _erased(cache: PrefixCache, slot: Slot) -> dict[str, Any]:
    prefix = slot.prefix
    if prefix is not None:
        slot.slots.drop(slot.key, slot.model, slot.id)
        await asyncio.to_thread(cache.forget, *prefix)
    return {"id_slot": slot.id, "n_erased": 0 if prefix is None else len(prefix.tokens)}


ENDPOINTS = [
    Endpoint("GET", "/slots", slots, "What runs now (llama.cpp)."),
    Endpoint(
        "POST", "/slots/{slot}", act, "Saves, restores or erases a slot (llama.cpp).", SlotRequest
    ),
]
