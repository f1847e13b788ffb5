"""`SamplingParams`: how the tokens of an answer are chosen, and where it ends."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypedDict

import numpy as np

from sterna import _native
from sterna.checks import checked_flag, checked_items, checked_real, checked_whole
from sterna.errors import RequestError, shown

__all__ = ["MAX_LOGPROBS", "SamplingOptions", "SamplingParams"]

MAX_LOGPROBS = 100
MAX_STOPS = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


#: Fields that a model's files may set, and their neutral values.
NEUTRAL: Mapping[str, float] = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
}  # fmt: skip


class SamplingOptions(TypedDict, total=False):
    """Keyword options of `LLM.generate` that are fields of `SamplingParams`; None: its default."""

    max_tokens: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    frequency_penalty: float | None
    presence_penalty: float | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str | Sequence[int]] | None
    min_tokens: int | None
    stop_token_ids: Sequence[int] | None
    seed: int | None
    stop: str | Sequence[str] | None
    ignore_eos: bool | None
    logprobs: int | None
    choice: int | None


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of an answer are chosen, and where it ends.

    Every field is checked when this is made; RequestError names one that is out of range.

    Logits are changed in this order: disallowed tokens are removed, `logit_bias` is added, then
    the repetition penalty applies to tokens of prompt and answer, and the frequency and presence
    penalties to tokens of the answer. Log-probabilities are those before any change.

    Attributes:
        max_tokens: Tokens of the answer at most. Default 128.
        temperature: Divides the logits, 0 to 100; 0 is greedy. Default None: the model's value
            (generation_config.json or GGUF), else 0.
        top_k: Sample among the k likeliest tokens; 0: all. Default None: the model's, else 0.
        top_p: Sample among the likeliest tokens whose probabilities reach p, above 0 to 1.
            Default None: the model's, else 1 (off).
        min_p: Drop tokens below this share of the likeliest one's probability, 0 to 1. Default
            None: the model's, else 0 (off).
        repetition_penalty: Divides positive logits of tokens seen in prompt or answer, and
            multiplies negative ones, 0.01 to 100. Default None: the model's, else 1 (off).
        frequency_penalty: Subtracted from a token's logit once per occurrence in the answer, -2 to
            2. Default 0 (off).
        presence_penalty: Subtracted once from the logit of each token in the answer, -2 to 2.
            Default 0 (off).
        logit_bias: Added to the logits of token ids, -100 to 100 each. Default none.
        allowed_token_ids: The only tokens that may come, ends included. Default None: all.
        bad_words: Texts or sequences of token ids that must not appear. Default none.
        min_tokens: Tokens before which the answer cannot end. Default 0.
        stop_token_ids: Token ids that end the answer, in addition to the model's ends, and with
            `ignore_eos` as well. Default none.
        seed: Seed of the random numbers, 0 to 2**64 - 1. Default None: a random one.
        stop: A string, or several, that end the answer and are not part of it. Default none.
        ignore_eos: Continue past the model's end tokens. Default False.
        logprobs: Report each token's log-probability and those of the n likeliest, up to 100.
            Default 0: none.
        choice: Which of several answers to a prompt this is; each has random numbers of its own.
            Default 0.
    """

    max_tokens: int = 128
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str | Sequence[int]] = ()
    min_tokens: int = 0
    stop_token_ids: Sequence[int] = ()
    seed: int | None = None
    stop: str | Sequence[str] = ()
    ignore_eos: bool = False
    logprobs: int = 0
    choice: int = 0

    def __post_init__(self) -> None:
        for name, value in vars(self).copy().items():
            if isinstance(value, np.generic):
                self._set(name, value.item())
        checked_whole("max_tokens", self.max_tokens, 0, 1 << 30)
        checked_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        checked_whole("choice", self.choice, 0, (1 << 32) - 1)
        checked_flag("ignore_eos", self.ignore_eos)
        if self.top_k is not None:
            checked_whole("top_k", self.top_k, 0, 1 << 30)
        if self.seed is not None:
            checked_whole("seed", self.seed, 0, (1 << 64) - 1)
        for name, (low, high) in _RANGES.items():
            if (value := getattr(self, name)) is not None:
                checked_real(name, value, low, high, open_low=name == "top_p")
        checked_whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        self._set("logit_bias", _biases(self.logit_bias))
        self._set("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            self._set("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids, 1))
        self._set("bad_words", _words(self.bad_words))
        self._set("stop", _stops(self.stop))

    def _set(self, name: str, value: object) -> None:
        """Store a field's checked form."""
        object.__setattr__(self, name, value)

    def replaced(self, fields: Mapping[str, Any]) -> SamplingParams:
        """Return a copy with some fields replaced. RequestError."""
        return replace(self, **fields) if fields else self

    def resolved(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Return a copy without None: the model's defaults, neutral values, and a random seed."""
        values = {"seed": self.fresh_seed(), **NEUTRAL, **defaults}
        return self.replaced({n: v for n, v in values.items() if getattr(self, n) is None})

    def check_ids(self, vocab: int) -> None:
        """Raise RequestError if a token id in some field is not below `vocab`."""
        named: dict[str, Iterable[int]] = {
            "logit_bias": self.logit_bias,
            "allowed_token_ids": self.allowed_token_ids or (),
            "stop_token_ids": self.stop_token_ids,
            "bad_words": [i for w in self.bad_words if not isinstance(w, str) for i in w],
        }
        for name, ids in named.items():
            if (highest := max(ids, default=0)) >= vocab:
                raise RequestError(
                    f"{name}: token ids must lie in 0..{vocab - 1}, but got {highest}"
                )

    @property
    def sampling(self) -> dict[str, float]:
        """The fields that a model's files may set, with neutral values in place of None."""
        given = {name: getattr(self, name) for name in NEUTRAL}
        return {n: NEUTRAL[n] if value is None else value for n, value in given.items()}

    @staticmethod
    def fresh_seed() -> int:
        """Return a random seed."""
        return secrets.randbits(63)

    @cached_property
    def native(self) -> _native.SampleParams:
        """The arguments of the native sampler; the seed is 0 where there is none."""
        sampling = self.sampling
        return _native.SampleParams(
            sampling["temperature"], int(sampling["top_k"]), sampling["top_p"], sampling["min_p"],
            sampling["repetition_penalty"], self.frequency_penalty, self.presence_penalty,
            list(self.logit_bias.items()), self.seed or 0, self.choice, self.logprobs,
        )  # fmt: skip


_RANGES = {
    "temperature": (0.0, 100.0), "top_p": (0.0, 1.0), "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0), "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
}  # fmt: skip


def _stops(given: str | Sequence[str] | None) -> tuple[str, ...]:
    if given is None or isinstance(given, str):
        stops: tuple[str, ...] = () if given is None else (given,)
    else:
        stops = tuple(checked_items("stop", given, "a string or several"))
    if len(stops) > MAX_STOPS or not all(isinstance(stop, str) and stop for stop in stops):
        raise RequestError(
            f"stop: must be at most {MAX_STOPS} non-empty strings, but got {shown(stops)}"
        )
    for stop in stops:
        if _SURROGATE.search(stop):
            raise RequestError(
                "stop: must be valid Unicode, since no answer has anything else, but got "
                f"{shown(stop)}; decode it as UTF-8"
            )
    return stops


def _biases(given: object) -> dict[int, float]:
    if not isinstance(given, Mapping):
        raise RequestError(
            f"logit_bias: must be a mapping of token ids to numbers, but got {shown(given)}"
        )
    ids = _ids("logit_bias", list(given))
    return {
        token: checked_real(f"logit_bias of {token}", bias, -100.0, 100.0)
        for token, bias in zip(ids, given.values(), strict=True)
    }


def _words(given: object) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        raise RequestError(f"bad_words: must be several, but got the text {shown(given)}")
    what = "a sequence of texts or of sequences of token ids"
    words = list(checked_items("bad_words", given, what))
    if "" in [w for w in words if isinstance(w, str)]:
        raise RequestError("bad_words: must not be empty, but one is; leave it out")
    return tuple(w if isinstance(w, str) else _ids("bad_words", w, 1) for w in words)


def _ids(name: str, given: object, least: int = 0) -> tuple[int, ...]:
    """Return token ids as a tuple. RequestError unless there are at least `least`."""
    ids = list(checked_items(name, given, "a sequence of token ids"))
    for id in ids:
        whole = isinstance(id, (int, np.integer)) and not isinstance(id, bool)
        if not whole or not 0 <= id < 1 << 31:
            raise RequestError(f"{name}: token ids must be whole numbers, but got {shown(id)}")
    if len(ids) < least:
        raise RequestError(f"{name}: must name a token at least, but got none")
    return tuple(int(id) for id in ids)
