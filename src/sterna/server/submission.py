"""Submits prompts and conversations: from an endpoint to the engine, by `LLM.requests`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sterna.engine import Request
from sterna.llm.chat_request import ChatRequest
from sterna.llm.generation_config import chat_sampling
from sterna.server.active_request import ActiveRequest
from sterna.server.chat_messages import fetched, library_messages
from sterna.server.errors import invalid
from sterna.server.settings import Settings
from sterna.server.structured_outputs import ConstraintSpec, constraint_for

__all__ = ["overflow_of", "submit_chat", "submit_prompts"]


async def submit_chat(
    active: ActiveRequest,
    chat: ChatRequest,
    asked: Sequence[ConstraintSpec] = (),
    response_format: dict[str, Any] | None = None,
    *,
    image_hosts: tuple[str, ...] = (),
    **scheduling: Any,
) -> None:
    """Render a conversation in the form of OpenAI's chat, and submit it to the engine.

    asked, response_format: fields for the constraint of the content. image_hosts: the hosts from
    which images may be fetched. scheduling: arguments of `ActiveRequest.request_args`. ApiError,
    RequestError.
    """
    llm = active.model.llm
    chat.options |= chat_sampling(llm.defaults, chat.options)
    active.names["constraint"] = "tools"  # unless another field asks for one
    chat.options |= active.options(await constraint_for(active, asked, response_format))
    arguments = active.request_args(**scheduling)

    def made() -> list[Request]:
        chat.messages = fetched(library_messages(llm, chat), image_hosts)
        return llm.requests.make_chat(chat, **arguments)

    requests = await asyncio.to_thread(made)
    if dropped := requests[0].completion.dropped_turns:
        active.warnings.append(f"the context is full: the oldest {dropped} turns were left out")
    active.submit([requests])


def overflow_of(truncation: str | None, settings: Settings) -> str:
    """Return `context_overflow` of a request: its own wish in OpenAI's words, or the server's."""
    if truncation not in (None, "auto", "disabled"):
        raise invalid("truncation", 'must be "auto" or "disabled"', truncation)
    if truncation is None:
        return settings.context_overflow
    if truncation == "disabled":
        return "error"
    own = settings.context_overflow
    return own if own != "error" else "truncate-oldest-turn"


async def submit_prompts(
    active: ActiveRequest,
    encode: Callable[[], Sequence[list[int]]],
    options: Mapping[str, Any],
    n: int = 1,
    **scheduling: Any,
) -> None:
    """Submit prompts with n answers each. encode: returns their token ids; may take time.

    options: those of `LLM.generate`. scheduling: arguments of `ActiveRequest.request_args`.
    """
    make, arguments = active.model.llm.requests.make_several, active.request_args(**scheduling)
    active.submit(
        await asyncio.to_thread(
            lambda: [make(prompt, n, options, **arguments) for prompt in encode()]
        )
    )
