"""Check an answer: repeat its request in this process and compare the receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Any

from sterna.chat.clock import clock
from sterna.errors import RequestError, shown
from sterna.llm import LLM
from sterna.server.app import create_app
from sterna.server.inprocess import post
from sterna.server.json_body import decode, encode
from sterna.server.model_manager import ModelManager, ModelSource
from sterna.server.service import Service
from sterna.server.settings import Settings

__all__ = ["differences"]

#: The endpoint of each kind of answer.
PATHS = {
    "chat.completion": "/v1/chat/completions",
    "chat.completion.chunk": "/v1/chat/completions",
    "text_completion": "/v1/completions",
    "response": "/v1/responses",
    "message": "/v1/messages",
}
COMPARED = ("seed", "prompt_sha256", "tokens_sha256")
#: Compared only if the receipt has it: earlier versions did not write it.
SAMPLING = "sampling"


def differences(opener: Callable[[], LLM], request: Any, answer: Any) -> list[str]:
    """List the differences between this machine's answer to a request and a given one; empty if
    there are none.

    request: the body that was sent. answer: the response, or the chunk of a stream that has the
    receipt. RequestError if they are not valid.
    """
    if not isinstance(request, dict):
        raise RequestError(f"request: must be a JSON object, but got {shown(request)}")
    receipt = answer.get("receipt") if isinstance(answer, dict) else None
    kind = answer.get("object", answer.get("type")) if isinstance(answer, dict) else None
    if not isinstance(receipt, dict) or kind not in PATHS:
        raise RequestError(
            "answer: must be an answer of this server with a receipt, but has none; in a stream, "
            "the last chunk of the answer has it"
        )
    body = {k: v for k, v in request.items() if k not in ("model", "stream", "stream_options")}
    with clock(_moment(receipt)):
        again = asyncio.run(_again(opener, PATHS[kind], {**body, "seed": receipt.get("seed")}))
    if "receipt" not in again:
        raise RequestError(f"request: was refused: {again['error']['message']}")
    lines = [
        f"{name}: the answer has {shown(receipt.get(name))}, this machine {shown(made)}"
        for name in (*COMPARED, *([SAMPLING] if SAMPLING in receipt else []))
        if receipt.get(name) != (made := again["receipt"][name])
    ]
    there, here = answer.get("system_fingerprint"), again.get("system_fingerprint")
    if there != here:
        lines.insert(0, f"system_fingerprint: the answer has {shown(there)}, this machine {here}")
    return lines


def _moment(receipt: dict[str, Any]) -> datetime | None:
    """Return the time that the template was given; None if the template did not ask for it."""
    said = receipt.get("rendered_at")
    if said is None:
        return None
    try:
        return datetime.fromisoformat(said)
    except (TypeError, ValueError):
        raise RequestError(
            f"rendered_at: must be a time in ISO 8601, but the receipt has {shown(said)}"
        ) from None


async def _again(opener: Callable[[], LLM], path: str, body: dict[str, Any]) -> dict[str, Any]:
    service = Service(
        Settings(metrics=False, trust_request_chat_template=True),
        ModelManager({"model": ModelSource(opener)}, {}),
    )
    try:
        _, said = await post(create_app(service), path, encode(body), {"id": "again", "key": ""})
    finally:
        await service.close()
    return decode(said, dict[str, Any])
