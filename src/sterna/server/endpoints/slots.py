"""llama.cpp's /slots: what runs now, and the saving, restoring and erasing of prompts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from sterna.server.active_request import ActiveRequest
from sterna.server.errors import ApiError, field_error, invalid
from sterna.server.json_body import decode, read_bytes
from sterna.server.model_manager import LoadedModel
from sterna.server.routing import Endpoint, as_json, service_of
from sterna.server.slots import PrefixCache, restore_prefix, save_prefix


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
        slot, action = service.slots.checked(int(text)), query.get("action", "")
        handler = ACTIONS.get(action)
        if handler is None:
            raise invalid("action", f"must be one of {', '.join(ACTIONS)}", action)
        await service.slots.settle(request.state.key, loaded.name, slot)
        return as_json(await handler(request, loaded, cache, slot, body.filename))


async def _save(
    request: Request, loaded: LoadedModel, cache: PrefixCache, slot: int, filename: str | None
) -> dict[str, Any]:
    key, began = request.state.key, time.perf_counter()
    name = _checked(filename)
    prefix = service_of(request).slots.held(key, loaded.name, slot)
    if prefix is None:
        raise invalid("id_slot", "must be of a slot that has had a request", slot)
    stored = await asyncio.to_thread(save_prefix, cache, key, name, prefix)
    return {
        "id_slot": slot,
        "filename": name,
        "n_saved": stored.n_tokens,
        "n_written": stored.nbytes,
        "timings": {"save_ms": _ms(began)},
    }


async def _restore(
    request: Request, loaded: LoadedModel, cache: PrefixCache, slot: int, filename: str | None
) -> dict[str, Any]:
    key, began = request.state.key, time.perf_counter()
    name = _checked(filename)
    stored = await asyncio.to_thread(restore_prefix, cache, key, name)
    service_of(request).slots.put(key, loaded.name, slot, stored.prefix)
    return {
        "id_slot": slot,
        "filename": name,
        "n_restored": stored.n_tokens,
        "n_read": stored.nbytes,
        "timings": {"restore_ms": _ms(began)},
    }


async def _erase(
    request: Request, loaded: LoadedModel, cache: PrefixCache, slot: int, filename: str | None
) -> dict[str, Any]:
    held, key = service_of(request).slots, request.state.key
    prefix = held.held(key, loaded.name, slot)
    count = 0 if prefix is None else len(prefix.tokens)
    if prefix is not None:
        held.drop(key, loaded.name, slot)
        await asyncio.to_thread(cache.forget, *prefix)
    return {"id_slot": slot, "n_erased": count}


ACTIONS: dict[str, Callable[..., Any]] = {"save": _save, "restore": _restore, "erase": _erase}


def _checked(filename: str | None) -> str:
    """Return the name of a file. ApiError 400 if there is none."""
    if not filename:
        raise field_error("filename", "must be given", code="missing_parameter")
    return filename


def _ms(began: float) -> float:
    return round(1e3 * (time.perf_counter() - began), 3)


ENDPOINTS = [
    Endpoint("GET", "/slots", slots, "What runs now (llama.cpp)."),
    Endpoint(
        "POST", "/slots/{slot}", act, "Saves, restores or erases a slot (llama.cpp).", SlotRequest
    ),
]
