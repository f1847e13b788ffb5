"""What a request may ask of the sampler, checked."""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import NonFiniteError, RequestError, shown
from sterna.runtime import checked_flag, checked_items, checked_whole

__all__ = ["DecidingLogits", "Draw", "SamplingParams"]

MAX_LOGPROBS = 100
MAX_STOPS = 64
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_TOP = 256  #: above it screening a head would not pay (docs/exact-head.md)
MAX_GAP = 4.0  #: in nats; a wider gap may leave a large part of the vocabulary open
NO_HISTORY: npt.NDArray[np.int32] = np.zeros(0, np.int32)


@dataclass(frozen=True, eq=False)
class DecidingLogits:
    """Which logits of a step decide: the `count` largest, ties included, and those within `gap`.

    count 0: all of them. gap: logits at most so much below the count-th largest decide, too.
    penalty, history: ranks and gap are those under this repetition penalty of the tokens of history
    (int32).
    """

    count: int = 0
    gap: float = 0.0
    penalty: float = 1.0
    history: npt.NDArray[np.int32] = field(default_factory=lambda: NO_HISTORY)


#: All logits decide.
EVERYTHING = DecidingLogits()


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of one request; every field is checked when it is made (RequestError).

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 are off; logprobs
    is how many of the likeliest tokens to report beside the chosen one's log-probability; choice is
    which of several answers to a prompt this is, each of which has random numbers of its own.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    logprobs: int = 0
    choice: int = 0

    def __post_init__(self) -> None:
        """Check the ranges."""
        checked_whole("max_tokens", self.max_tokens, 0, 1 << 30)
        checked_whole("top_k", self.top_k, 0, 1 << 30)
        checked_whole("seed", self.seed, 0, (1 << 64) - 1)
        checked_whole("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        checked_whole("choice", self.choice, 0, (1 << 32) - 1)
        checked_flag("ignore_eos", self.ignore_eos)
        _real("temperature", self.temperature, 0.0, 100.0)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
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

    def deciding(self, history: npt.NDArray[np.int32]) -> DecidingLogits:
        """Which logits decide the next token, given the tokens so far; a superset is harmless."""
        count, gap = self._decisive
        return DecidingLogits(count, gap, self.repetition_penalty, history) if count else EVERYTHING

    @cached_property
    def _decisive(self) -> tuple[int, float]:
        """`DecidingLogits`'s count and gap; 0 where all logits may decide.

        Top-k comes before top-p and min-p, which see only what it has left. Min-p alone drops what
        weighs less than min_p times the likeliest token: what is -temperature ln(min_p) below it.
        """
        count, gap = (1 if self.temperature == 0 else self.top_k), 0.0
        if count == 0 and self.top_p == 1 and self.min_p > 0:
            # A little more than the gap of the sampler's float32 values, in steps of 1/1024 so that
            # the logarithm's last bits do not matter.
            exact = self.temperature * (1e-5 - math.log(self.min_p)) * (1 + 1e-5)
            count, gap = 1, math.ceil(exact * 1024) / 1024
        return (0, 0.0) if self.logprobs or count > MAX_TOP or gap > MAX_GAP else (count, gap)

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
            self.seed, self.choice, self.logprobs,
        )  # fmt: skip

    def sample(
        self, logits: npt.NDArray[np.float32], history: npt.NDArray[np.int32], position: int
    ) -> _native.SampleResult:
        """Choose the token at `position` from logits [vocab]; NonFiniteError if one is not finite.

        history: int32, the sequence's tokens so far, for the repetition penalty.
        """
        return checked(_native.sample(logits, self.native, history, position))


@dataclass(frozen=True, eq=False, slots=True)
class Draw:
    """A token to draw from each row of logits, with these parameters.

    history: the sequence's tokens, those of the step included; each row sees those up to its own.
    """

    params: SamplingParams
    history: npt.NDArray[np.int32]

    @property
    def deciding(self) -> DecidingLogits:
        """Which logits decide it."""
        return self.params.deciding(self.history)


def checked(drawn: _native.SampleResult) -> _native.SampleResult:
    """What was drawn; NonFiniteError where the logits were not finite."""
    if not drawn.finite:
        raise NonFiniteError(
            "logits: must be finite, but got NaN or infinity; the model's weights are damaged"
        )
    return drawn


def _real(name: str, value: object, low: float, high: float, open_low: bool = False) -> None:
    # NaN is in no interval; a huge int compares where it would not convert.
    good = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not good or not low <= value <= high or (open_low and value == low):  # type: ignore[operator]
        raise RequestError(
            f"{name}: must lie in {'(' if open_low else '['}{low:g}, {high:g}], "
            f"but got {shown(value)}"
        )
