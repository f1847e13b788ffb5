"""The request fields that completions and chat share, and their translation to engine options."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from sterna.llm import LLM
from sterna.server.errors import invalid

__all__ = [
    "LoraScale",
    "SamplingFields",
    "StreamOptions",
    "StructuredOutputs",
    "check_top_logprobs",
    "checked_n",
    "checked_priority",
    "checked_timeout",
    "sampling_options",
]

MAX_N = 8  #: answers to one prompt
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_BREAKERS = 32
LEAST_BIAS = -100.0  #: leaves a token no probability to speak of
#: Bits of a seed that the server draws: JavaScript can read it from JSON exactly.
SEED_BITS = 48
MAX_IDS = 4096  #: token ids in a list other than a prompt
#: For clients of vLLM and llama.cpp: no limit (max_tokens, top_k), no seed.
NONE = -1

#: Fields that `LLM.generate` takes under the same name.
_SAME = """
    temperature top_p top_k min_p repetition_penalty presence_penalty frequency_penalty stop
    ignore_eos min_tokens stop_token_ids bad_words allowed_token_ids dry_multiplier dry_base
    dry_allowed_length dry_penalty_last_n dry_sequence_breakers top_n_sigma typical_p
    xtc_probability xtc_threshold dynatemp_range dynatemp_exponent mirostat mirostat_tau
    mirostat_eta samplers repeat_last_n
""".split()


class StreamOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Further contents of a stream.

    continuous_usage_stats: put the usage so far into each chunk, as vLLM does.
    include_obfuscation: accepted and ignored.
    """

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's `structured_outputs`: the constraint of an answer. Exactly one may be set."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None


class LoraScale(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """llama.cpp's: an adapter, by its place in /lora-adapters, and its scale."""

    id: int
    scale: float


class SamplingFields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The fields of both completions and chat. The engine checks most ranges.

    prompt_cache_key acts as cache_salt if there is none. grammar, json_schema, repeat_penalty,
    repeat_last_n, id_slot and lora are llama.cpp's.
    """

    model: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    top_n_sigma: float | None = None
    typical_p: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    samplers: list[str] | None = None
    logit_bias: dict[str, float | bool] | list[tuple[int | str, float | bool]] | None = None
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
    grammar: str | None = None
    json_schema: dict[str, Any] | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    id_slot: int | None = None
    lora: list[LoraScale] | None = None
    return_token_ids: bool | None = None
    timeout: float | None = None
    priority: int | None = None
    cache_salt: str | None = None
    prompt_cache_key: str | None = None


def sampling_options(
    body: SamplingFields, llm: LLM, max_tokens: int | None, logprobs: int
) -> dict[str, Any]:
    """Return the options of `LLM.generate` that a request sets. ApiError 400 for an exceeded limit.

    max_tokens: the default; None is as many as fit into the context. logprobs: how many
    alternatives to report for each token.
    """
    if body.repeat_penalty is not None:
        body.repetition_penalty = body.repeat_penalty
    options = {name: getattr(body, name) for name in _SAME if getattr(body, name) is not None}
    if options.get("top_k") == NONE:
        options["top_k"] = 0
    if options.get("top_p") == 0:  # clients use it for greedy decoding
        del options["top_p"]
        options["temperature"] = 0.0
    wanted = max_tokens if body.max_tokens is None else body.max_tokens
    options["max_tokens"] = llm.context if wanted in (None, NONE) else wanted
    if logprobs:
        options["logprobs"] = logprobs
    for name in ("allowed_token_ids", "stop_token_ids", "bad_words"):
        _bounded(name, options.get(name, ()))
    _bounded("dry_sequence_breakers", body.dry_sequence_breakers or (), MAX_BREAKERS)
    if body.seed not in (None, NONE):
        assert body.seed is not None
        if not -(1 << 63) <= body.seed < 1 << 64:
            raise invalid("seed", "must be a whole number of 64 bits", body.seed)
        options["seed"] = body.seed % (1 << 64)
    else:
        options["seed"] = secrets.randbits(SEED_BITS)
    if body.logit_bias:
        options["logit_bias"] = _biases(body.logit_bias, llm)
    return options


def check_top_logprobs(count: int) -> None:
    """Raise ApiError 400 for too many alternatives of a token."""
    if not 0 <= count <= MAX_TOP_LOGPROBS:
        raise invalid("top_logprobs", f"must lie in 0..{MAX_TOP_LOGPROBS}", count)


def checked_n(body: SamplingFields) -> int:
    """Return the number of answers. ApiError 400."""
    n = 1 if body.n is None else body.n
    if not 1 <= n <= MAX_N:
        raise invalid("n", f"must lie in 1..{MAX_N}", n)
    return n


def checked_timeout(body: SamplingFields, limit: float | None) -> float | None:
    """Return the seconds for the answer, at most `limit`, the server's own. ApiError 400."""
    if body.timeout is not None and not 0 < body.timeout <= 86400:
        raise invalid("timeout", "must lie in (0, 86400] seconds", body.timeout)
    return min((t for t in (body.timeout, limit) if t is not None), default=None)


def checked_priority(body: SamplingFields) -> int:
    """Return the priority in the queue. ApiError 400."""
    if body.priority is not None and not -1000 <= body.priority <= 1000:
        raise invalid("priority", "must lie in -1000..1000", body.priority)
    return body.priority or 0


def _biases(
    values: dict[str, float | bool] | list[tuple[int | str, float | bool]], llm: LLM
) -> dict[int, float]:
    """Read OpenAI's mapping, or llama.cpp's pairs.

    In both, as in llama.cpp, false removes a token, and a text stands for all of its tokens.
    """
    _bounded("logit_bias", values, MAX_BIASES)
    by_id = {}
    for key, value in values.items() if isinstance(values, dict) else values:
        if value is True:
            raise invalid("logit_bias", "must have numbers or false", True)
        bias = LEAST_BIAS if value is False else value
        if isinstance(key, int) or (key.isascii() and key.isdigit() and len(key) <= 9):
            by_id[int(key)] = bias
            continue
        ids = llm.tokenizer.encode(key, add_special=False)
        if not ids:
            raise invalid("logit_bias", "must be of token ids or texts", key)
        by_id |= dict.fromkeys(ids, bias)
    _bounded("logit_bias", by_id, MAX_BIASES)
    return by_id


def _bounded(name: str, items: Any, most: int = MAX_IDS) -> Any:
    if len(items) > most:
        raise invalid(name, f"must have at most {most} entries", len(items))
    return items
