"""`Ask`: the one request that every endpoint makes of what its clients send."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import msgspec

from sterna.server.errors import invalid

__all__ = [
    "GenerationRequest",
    "SamplingFields",
    "StreamOptions",
    "StructuredOutputs",
    "checked_n",
    "checked_priority",
    "checked_timeout",
    "sampling_options",
]

MAX_N = 8  #: answers to one prompt
MAX_BIASES = 1024
#: Of a seed that nobody named: JavaScript, too, reads it from JSON as it is.
SEED_BITS = 48
MAX_IDS = 4096  #: token ids in a list that is no prompt
#: What clients of vLLM and llama.cpp write for no limit (max_tokens, top_k) and for no seed.
NONE = -1

#: Fields that are `LLM.generate`'s under the same name.
_SAME = (
    "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "stop", "ignore_eos", "min_tokens", "stop_token_ids", "bad_words",
    "allowed_token_ids",
)  # fmt: skip


@dataclass
class GenerationRequest:
    """A prompt and how it is to be answered, whatever protocol asked.

    prompt: token ids; options: of `LLM.generate`; n: answers; chat: ends of turns end an answer;
    salt: prefixes are shared among equal salts; prediction: token ids that the answer resembles;
    constraint: what the answer must follow; rendered_at: the time that the template was told, in
    ISO 8601, where it asked for it.
    """

    prompt: list[int]
    options: dict[str, Any] = field(default_factory=dict)
    n: int = 1
    chat: bool = False
    salt: str = ""
    priority: int = 0
    deadline_s: float | None = None
    constraint: Any = None
    prediction: list[int] | None = None
    rendered_at: str | None = None


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What a stream tells beside the answer; include_obfuscation changes nothing here.

    continuous_usage_stats: each chunk has the usage so far, as vLLM's have.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What an answer must follow, in vLLM's words: one of them."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Fields of completions and of chat alike. Ranges are the engine's, which checks them.

    prompt_cache_key is a salt where there is no cache_salt.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = None
    seed: int | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None


def sampling_options(body: SamplingFields, max_tokens: int | None, logprobs: int) -> dict[str, Any]:
    """The options of `LLM.generate` that a body sets; ApiError 400 where it asks for too much.

    max_tokens: where the body has none; None: as many as the context has room for. logprobs: how
    many alternatives of each token.
    """
    options = {name: getattr(body, name) for name in _SAME if getattr(body, name) is not None}
    if options.get("top_k") == NONE:
        options["top_k"] = 0
    if options.get("top_p") == 0:  # the likeliest token alone has so little
        del options["top_p"]
        options["temperature"] = 0.0
    options["max_tokens"] = max_tokens if body.max_tokens is None else body.max_tokens
    if body.max_tokens == NONE:
        options["max_tokens"] = None
    if logprobs:
        options["logprobs"] = logprobs
    for name in ("allowed_token_ids", "stop_token_ids", "bad_words"):
        _bounded(name, options.get(name, ()))
    if body.seed not in (None, NONE):
        assert body.seed is not None
        if not -(1 << 63) <= body.seed < 1 << 64:
            raise invalid("seed", "must be a whole number of 64 bits", body.seed)
        options["seed"] = body.seed % (1 << 64)
    else:
        options["seed"] = secrets.randbits(SEED_BITS)
    if body.logit_bias:
        options["logit_bias"] = _biases(body.logit_bias)
    return options


def checked_n(body: SamplingFields) -> int:
    """How many answers."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_N:
        raise invalid("n", f"must lie in 1..{MAX_N}", n)
    return n


def checked_timeout(body: SamplingFields, most: float | None) -> float | None:
    """Seconds that the answer may take: the body's, but no more than the server's."""
    if body.timeout is not None and not 0 < body.timeout <= 86400:
        raise invalid("timeout", "must lie in (0, 86400] seconds", body.timeout)
    return min((t for t in (body.timeout, most) if t is not None), default=None)


def checked_priority(body: SamplingFields) -> int:
    """The place in the queue among equals."""
    if body.priority is not None and not -1000 <= body.priority <= 1000:
        raise invalid("priority", "must lie in -1000..1000", body.priority)
    return body.priority or 0


def _biases(given: dict[str, float]) -> dict[int, float]:
    found = {}
    for key, value in _bounded("logit_bias", given, MAX_BIASES).items():
        if not key.isascii() or not key.isdigit() or len(key) > 9:
            raise invalid("logit_bias", "must map token ids", key)
        found[int(key)] = value
    return found


def _bounded(name: str, items: Any, most: int = MAX_IDS) -> Any:
    if len(items) > most:
        raise invalid(name, f"must have at most {most} entries", len(items))
    return items
