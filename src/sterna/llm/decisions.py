"""`Decision`: probabilities of given answers, from their log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sterna import _native
from sterna.outputs import Stats

__all__ = ["Decision", "decided"]


@dataclass(frozen=True)
class Decision:
    """Probabilities of several answers to a question.

    The numbers have the same bits on every machine, so a threshold that was tuned on one holds on
    the others.

    Attributes:
        answer: The likeliest option, the first of equals.
        probabilities: The probability of each option, in their order; they add up to 1.
        logprobs: Natural-log probability of each option's whole text after the question.
        lengths: Tokens of each option's text.
        normalised: Whether the probabilities are of `logprobs` divided by `lengths`.
        neutral_logprobs: Like `logprobs`, but after the neutral context, and subtracted from them
            before anything else; None without one.
        value: For a score, the mean of its numbers by probability; None for other questions.
        stats: Counts of the prompts that were computed.
    """

    answer: str
    probabilities: dict[str, float]
    logprobs: dict[str, float]
    lengths: dict[str, int]
    normalised: bool
    neutral_logprobs: dict[str, float] | None
    value: float | None
    stats: Stats

    @property
    def probability(self) -> float:
        """Probability of the answer."""
        return self.probabilities[self.answer]

    @property
    def confidence(self) -> float:
        """Difference of the two largest probabilities; 1 if there is one option."""
        best, *others = sorted(self.probabilities.values(), reverse=True)
        return best - (others[0] if others else 0.0)


def decided(
    texts: Sequence[str],
    logprobs: Sequence[float],
    lengths: Sequence[int],
    *,
    normalised: bool,
    neutral: Sequence[float] | None,
    values: Sequence[int] | None,
    stats: Stats,
) -> Decision:
    """Make a decision from log-probabilities of options; values: their numbers, for a score."""
    shift = neutral if neutral is not None else [0.0] * len(texts)
    weights = [
        (logprob - less) / (length if normalised else 1)
        for logprob, less, length in zip(logprobs, shift, lengths, strict=True)
    ]
    shares = _softmax(weights)
    best = max(range(len(texts)), key=lambda i: (shares[i], -i))
    pairs = None if values is None else zip(values, shares, strict=True)
    return Decision(
        texts[best],
        dict(zip(texts, shares, strict=True)),
        dict(zip(texts, logprobs, strict=True)),
        dict(zip(texts, lengths, strict=True)),
        normalised,
        None if neutral is None else dict(zip(texts, neutral, strict=True)),
        None if pairs is None else math.fsum(value * share for value, share in pairs),
        stats,
    )


def _softmax(weights: Sequence[float]) -> list[float]:
    """exp(w) / sum of all exp(w), with the core's exponential: libm's differs among machines."""
    most = max(weights)
    powers = _native.exponentials(np.array([w - most for w in weights], np.float32)).tolist()
    total = math.fsum(powers)
    return [power / total for power in powers]
