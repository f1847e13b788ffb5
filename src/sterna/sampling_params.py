"""`SamplingParams`: how the tokens of an answer are chosen, and where it ends."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sterna import _native
from sterna.checks import checked_flag, checked_items, checked_real, checked_whole
from sterna.errors import RequestError, shown

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

MAX_LOGPROBS = 100
MAX_STOPS = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of one request; every field is checked when it is made (RequestError).

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0, repetition_penalty 1, frequency_penalty 0
    and presence_penalty 0 are off; logprobs is how many of the likeliest tokens to report beside
    the chosen one's log-probability; choice is which of several answers to a prompt this is, each
    of which has random numbers of its own.

    Logits are changed in this order: tokens that may not come go, logit_bias is added, then the
    repetition penalty of what prompt and answer have, and the frequency and presence penalties of
    what the answer has. Log-probabilities are those of the logits before.

    logit_bias: of token ids, -100 to 100. allowed_token_ids: no others come, ends included; None:
    all. bad_words: texts or sequences of ids; the last token of one does not follow the others
    (`AllowedTokens`). min_tokens: before so many no end comes. stop_token_ids: they end the answer,
    beside the ends that it has anyway, and with ignore_eos as well.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0
    choice: int = 0

    def __post_init__(self) -> None:
        checked_whole("max_tokens", self.max_tokens, 0, 1 << 30)
        checked_whole("top_k", self.top_k, 0, 1 << 30)
        checked_whole("seed", self.seed, 0, (1 << 64) - 1)
        checked_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        checked_whole("choice", self.choice, 0, (1 << 32) - 1)
        checked_flag("ignore_eos", self.ignore_eos)
        checked_real("temperature", self.temperature, 0.0, 100.0)
        checked_real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        checked_real("min_p", self.min_p, 0.0, 1.0)
        checked_real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        checked_real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        checked_real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        checked_whole("min_tokens", self.min_tokens, 0, self.max_tokens)
        self._take("logit_bias", _biases(self.logit_bias))
        self._take("stop_token_ids", _ids("stop_token_ids", self.stop_token_ids))
        if self.allowed_token_ids is not None:
            self._take("allowed_token_ids", _ids("allowed_token_ids", self.allowed_token_ids, 1))
        self._take("bad_words", _words(self.bad_words))
        if len(self.stop) > MAX_STOPS or not all(isinstance(s, str) and s for s in self.stop):
            raise RequestError(
                f"stop: must be at most {MAX_STOPS} non-empty strings, but got {shown(self.stop)}"
            )
        for s in self.stop:
            if _SURROGATE.search(s):
                raise RequestError(
                    "stop: must be valid Unicode, since no answer has anything else, but got "
                    f"{shown(s)}; decode it as UTF-8"
                )

    def _take(self, name: str, value: object) -> None:
        """What a field becomes once it is checked."""
        object.__setattr__(self, name, value)

    def check_ids(self, vocab: int) -> None:
        """RequestError where a token id that some field names is not below `vocab`."""
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
        """How tokens are chosen: the fields that a model's files may set."""
        names = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        return {name: getattr(self, name) for name in names}

    @staticmethod
    def stops(stop: str | Sequence[str] | None) -> tuple[str, ...]:
        """`stop` as a tuple."""
        if stop is None or isinstance(stop, str):
            return () if stop is None else (stop,)
        return tuple(checked_items("stop", stop, "a string or several"))

    @staticmethod
    def fresh_seed() -> int:
        """A seed for a request that names none."""
        return secrets.randbits(63)

    @cached_property
    def native(self) -> _native.SampleParams:
        """The arguments of the native sampler."""
        return _native.SampleParams(
            self.temperature, self.top_k, self.top_p, self.min_p, self.repetition_penalty,
            self.frequency_penalty, self.presence_penalty, list(self.logit_bias.items()),
            self.seed, self.choice, self.logprobs,
        )  # fmt: skip


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
    """Token ids as a tuple, at least so many."""
    ids = list(checked_items(name, given, "a sequence of token ids"))
    for id in ids:
        whole = isinstance(id, (int, np.integer)) and not isinstance(id, bool)
        if not whole or not 0 <= id < 1 << 31:
            raise RequestError(f"{name}: token ids must be whole numbers, but got {shown(id)}")
    if len(ids) < least:
        raise RequestError(f"{name}: must name a token at least, but got none")
    return tuple(int(id) for id in ids)
