"""`SamplingParams`: how the tokens of an answer are chosen, and where it ends."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from sterna import _native
from sterna.checks import checked_flag, checked_items, checked_name, checked_real, checked_whole
from sterna.errors import RequestError, shown

__all__ = ["MAX_LOGPROBS", "SamplingParams"]

MAX_LOGPROBS = 100
MAX_STOPS = 64
_SURROGATE = re.compile("[\ud800-\udfff]")


#: Fields that a model's files may set, and their neutral values.
NEUTRAL: Mapping[str, float] = {
    **{"temperature": 0.0, "top_k": 0, "min_p": 0.0},
    **{"top_p": 1.0, "repetition_penalty": 1.0, "typical_p": 1.0},
}

#: llama.cpp's names of the steps of sampling, in its order.
SAMPLERS = tuple("penalties dry top_n_sigma top_k typ_p top_p min_p xtc temperature".split())
CHANGES = SAMPLERS[:2]  #: these change logits, before the others
#: llama.cpp's default breakers of DRY.
BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True)
class SamplingParams:
    """How the tokens of an answer are chosen, and where it ends.

    Every field is checked when this is made; RequestError names one that is out of range.

    Logits are changed in this order: disallowed tokens are removed, `logit_bias` is added, then
    the repetition penalty applies to tokens of prompt and answer, and the frequency and presence
    penalties to tokens of the answer (`repeat_last_n` has all count the same tokens), and then the
    DRY penalty. Log-probabilities are those before any change. Then come temperature, top_k, top_p
    and min_p. A request that uses `samplers`, `top_n_sigma`, `typical_p`, `xtc_probability` or
    `dynatemp_range` has llama.cpp's order instead: top_n_sigma, top_k, typical_p, top_p, min_p,
    XTC, temperature. A temperature of 0 is greedy, whatever the other fields say.

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
        repeat_last_n: Last tokens of prompt and answer that these three penalties count, as in
            llama.cpp; -1: all of both; 0: none. Default None: repetition_penalty counts all of
            both, the others count the answer, as in vLLM.
        dry_multiplier: Scale of the DRY penalty, 0 to 100: a token that would make a repeat of n
            tokens longer loses `dry_multiplier * dry_base ** (n - dry_allowed_length)`, if n is at
            least `dry_allowed_length`. Default 0 (off).
        dry_base: Its growth with each token of the repeat, 1 to 100. Default 1.75.
        dry_allowed_length: Tokens of the shortest repeat that counts. Default 2.
        dry_penalty_last_n: Last tokens of prompt and answer that are searched; -1: all; 0: off.
            Default -1.
        dry_sequence_breakers: Texts, or sequences of token ids, that no repeat contains. Default
            newline, colon, quotation mark and asterisk.
        top_n_sigma: Keep tokens whose logit is within n standard deviations of the largest, up to
            100; 0 and below: off. Default -1 (off).
        typical_p: Keep the tokens whose surprise is nearest to the expected one, until their
            probabilities reach p, 0 to 1; 0 and 1: off. Default None: the model's, else 1 (off).
        xtc_probability: How often XTC drops the likeliest tokens: of those that reach
            `xtc_threshold`, all but the least likely. 0 to 1. Default 0 (off).
        xtc_threshold: The probability from which XTC drops tokens, 0 to 1; above 0.5: off. Default
            0.1.
        dynatemp_range: The temperature lies between `temperature - dynatemp_range`, at least 0, and
            `temperature + dynatemp_range`, and is the higher, the closer the entropy of the tokens
            that are left is to its largest value. 0 to 100. Default 0 (off).
        dynatemp_exponent: Applied to the entropy's share of its largest value, 0 to 100. Default 1.
        mirostat: Hold the surprise of tokens near a target, by version 1 or 2 of Mirostat, in place
            of all steps between penalties and temperature. Default 0 (off).
        mirostat_tau: The target, in bits, 0 to 100. Default 5.
        mirostat_eta: How fast it corrects deviations, 0 to 1. Default 0.1.
        samplers: The steps of sampling, by llama.cpp's names, in this order; those left out are
            off. `penalties` and `dry` come before others. Default None: the order above.
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
    repeat_last_n: int | None = None
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: Sequence[str | Sequence[int]] = BREAKERS
    top_n_sigma: float = -1.0
    typical_p: float | None = None
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    samplers: Sequence[str] | None = None
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
        checked_whole("dry_allowed_length", self.dry_allowed_length, 0, 1 << 30)
        checked_whole("dry_penalty_last_n", self.dry_penalty_last_n, -1, 1 << 30)
        checked_whole("mirostat", self.mirostat, 0, 2)
        checked_flag("ignore_eos", self.ignore_eos)
        if self.repeat_last_n is not None:
            checked_whole("repeat_last_n", self.repeat_last_n, -1, 1 << 30)
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
        self._set("bad_words", _words("bad_words", self.bad_words))
        breakers = _words("dry_sequence_breakers", self.dry_sequence_breakers)
        self._set("dry_sequence_breakers", breakers)
        if self.samplers is not None:
            self._set("samplers", _samplers(self.samplers))
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
            "dry_sequence_breakers": [
                i for w in self.dry_sequence_breakers if not isinstance(w, str) for i in w
            ],
        }
        for name, ids in named.items():
            if (highest := max(ids, default=0)) >= vocab:
                raise RequestError(
                    f"{name}: token ids must lie in 0..{vocab - 1}, but got {highest}"
                )

    @property
    def sampling(self) -> dict[str, float]:
        """The fields that a model's files may set, with neutral values in place of None."""
        argument = {name: getattr(self, name) for name in NEUTRAL}
        return {n: NEUTRAL[n] if value is None else value for n, value in argument.items()}

    @property
    def chains(self) -> bool:
        """Whether a sampler other than typical_p asks for llama.cpp's order."""
        return self.top_n_sigma > 0 or self.xtc_probability > 0 or self.dynatemp_range > 0

    @staticmethod
    def fresh_seed() -> int:
        """Return a random seed."""
        return secrets.randbits(63)

    @cached_property
    def native(self) -> _native.SampleParams:
        """The arguments of the native sampler; the seed is 0 where there is none.

        Texts among `dry_sequence_breakers` are left out: they need a tokenizer.
        """
        sampling, order = self.sampling, SAMPLERS if self.samplers is None else self.samplers
        penalties = (sampling["repetition_penalty"], self.frequency_penalty, self.presence_penalty)
        if "penalties" not in order:
            penalties = (1.0, 0.0, 0.0)
        return _native.SampleParams(
            sampling["temperature"] if "temperature" in order else 1.0,
            int(sampling["top_k"]),
            sampling["top_p"],
            sampling["min_p"],
            penalties[0],
            penalties[1],
            penalties[2],
            list(self.logit_bias.items()),
            self.seed or 0,
            self.choice,
            self.logprobs,
            self._chain,
            self._dry(self.dry_multiplier if "dry" in order else 0.0),
            self.repeat_last_n,
        )

    @property
    def _chain(self) -> _native.ChainParams:
        typical_p = self.sampling["typical_p"]
        chained = self.samplers is not None or self.chains or 0 < typical_p < 1
        order = (SAMPLERS if self.samplers is None else self.samplers) if chained else ()
        return _native.ChainParams(
            [name for name in order if name not in CHANGES],
            typical_p or 1.0,
            self.top_n_sigma,
            self.xtc_probability,
            self.xtc_threshold,
            self.dynatemp_range,
            self.dynatemp_exponent,
            self.mirostat,
            self.mirostat_tau,
            self.mirostat_eta,
        )

    def _dry(self, multiplier: float) -> _native.DryParams:
        breakers = [w for w in self.dry_sequence_breakers if not isinstance(w, str)]
        return _native.DryParams(
            multiplier,
            self.dry_base,
            self.dry_allowed_length,
            self.dry_penalty_last_n,
            breakers if multiplier else [],
        )


_RANGES = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "dry_multiplier": (0.0, 100.0),
    "dry_base": (1.0, 100.0),
    "top_n_sigma": (-1.0, 100.0),
    "typical_p": (0.0, 1.0),
    "xtc_probability": (0.0, 1.0),
    "xtc_threshold": (0.0, 1.0),
    "dynatemp_range": (0.0, 100.0),
    "dynatemp_exponent": (0.0, 100.0),
    "mirostat_tau": (0.0, 100.0),
    "mirostat_eta": (0.0, 1.0),
}


def _stops(argument: str | Sequence[str] | None) -> tuple[str, ...]:
    if argument is None or isinstance(argument, str):
        stops: tuple[str, ...] = () if argument is None else (argument,)
    else:
        stops = tuple(checked_items("stop", argument, "a string or several"))
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


def _biases(argument: object) -> dict[int, float]:
    if not isinstance(argument, Mapping):
        raise RequestError(
            f"logit_bias: must be a mapping of token ids to numbers, but got {shown(argument)}"
        )
    ids = _ids("logit_bias", list(argument))
    return {
        token: checked_real(f"logit_bias of {token}", bias, -100.0, 100.0)
        for token, bias in zip(ids, argument.values(), strict=True)
    }


def _words(name: str, argument: object) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(argument, str):
        raise RequestError(f"{name}: must be several, but got the text {shown(argument)}")
    what = "a sequence of texts or of sequences of token ids"
    words = list(checked_items(name, argument, what))
    if "" in [w for w in words if isinstance(w, str)]:
        raise RequestError(f"{name}: must not be empty, but one is; leave it out")
    return tuple(w if isinstance(w, str) else _ids(name, w, 1) for w in words)


def _samplers(argument: object) -> tuple[str, ...]:
    if isinstance(argument, str):
        raise RequestError(f"samplers: must be several names, but got the text {shown(argument)}")
    names = tuple(
        checked_name("samplers", name, SAMPLERS)
        for name in checked_items("samplers", argument, "a sequence of names")
    )
    if len(set(names)) < len(names):
        raise RequestError(f"samplers: must name each once, but got {shown(names)}")
    changes = [name for name in names if name in CHANGES]
    if names[: len(changes)] != tuple(sorted(changes, key=CHANGES.index)):
        raise RequestError(
            f"samplers: must begin with penalties and dry if it has them, but got {shown(names)}"
        )
    return names


def _ids(name: str, argument: object, least: int = 0) -> tuple[int, ...]:
    """Return token ids as a tuple. RequestError unless there are at least `least`."""
    ids = list(checked_items(name, argument, "a sequence of token ids"))
    for id in ids:
        whole = isinstance(id, (int, np.integer)) and not isinstance(id, bool)
        if not whole or not 0 <= id < 1 << 31:
            raise RequestError(f"{name}: token ids must be whole numbers, but got {shown(id)}")
    if len(ids) < least:
        raise RequestError(f"{name}: must name a token at least, but got none")
    return tuple(int(id) for id in ids)
