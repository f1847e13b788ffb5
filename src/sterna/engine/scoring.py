"""`Scoring`: a prompt whose tokens' log-probabilities are wanted, beside requests for answers."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from sterna import _native
from sterna.answers import TokenLogprob
from sterna.engine.drafts import Costs, usual_costs
from sterna.engine.engine import PREFILL_CHUNK, Feed, Given
from sterna.engine.request import Request
from sterna.engine.sampling import Draw, SamplingParams
from sterna.errors import NonFiniteError
from sterna.tokenizer import Tokenizer

__all__ = ["Scoring", "step_tokens"]

STEP_LOGITS = 1 << 24  # logits of a step: 64 MiB


def step_tokens(vocab: int) -> int:
    """Tokens of a step whose logits are all wanted: PREFILL_CHUNK, fewer for large vocabularies."""
    return max(1, min(PREFILL_CHUNK, STEP_LOGITS // vocab))


class Scoring(Request):
    """A request without an answer, for what `LLM.prompt_logprobs` gives.

    It computes all of its prompt, whatever a cache has of it, since that has no logits.
    """

    looks_up = False

    def __init__(
        self,
        prompt: SequenceOf[int],
        top: int,
        tokenizer: Tokenizer,
        *,
        context: int,
        vocab: int,
        threads: int,
        **place: Any,
    ) -> None:
        none = SamplingParams(max_tokens=0)
        super().__init__(prompt, none, tokenizer, context=context, vocab=vocab, **place)
        #: Of each token of the prompt; of the first there is none.
        self.scores: list[TokenLogprob | None] = [None] * len(prompt)
        self._most, self._threads = step_tokens(vocab), threads
        nothing = np.zeros(0, np.int32)
        self._top = Draw(SamplingParams(logprobs=top).native, nothing) if top else None

    @property
    def left(self) -> int:
        """Tokens whose next one is to be scored."""
        return self.n_prompt - 1 - self.sequence.length

    @property
    def longest(self) -> int:
        """Positions that its sequence has at the most."""
        return self.n_prompt - 1

    @property
    def ended(self) -> bool:
        """Whether all are scored, or it was ended."""
        return self.finished or self._reason is not None or None not in self.scores[1:]

    def feed(
        self, most: int = PREFILL_CHUNK, budget: int = 0, costs: Costs = usual_costs,
        others: int = 0,
    ) -> Feed:  # fmt: skip
        """As `Request.feed`, with logits after each token."""
        begin = self.sequence.length
        end = min(begin + most, begin + self._most, self.n_prompt - 1)
        return Feed(self.sequence, self._history[begin:end], end - begin)

    def receive(self, given: Given) -> None:
        """Takes a step's logits; NonFiniteError where they are not finite."""
        if self.finished or not len(given.logits):
            return
        end = self.sequence.length + 1
        begin = end - len(given.logits)
        targets = self._history[begin:end]
        logprobs = _native.log_softmax_at(given.logits, targets, self._threads).tolist()
        if not all(map(math.isfinite, logprobs)):
            raise NonFiniteError(
                "scores: log-probabilities must be finite, but got NaN or infinity; "
                "the model's weights are damaged"
            )
        for i, (token, logprob) in enumerate(zip(targets.tolist(), logprobs, strict=True)):
            self.scores[begin + i] = TokenLogprob(token, logprob, self._likeliest(given, i))
        self._note()

    def _likeliest(self, given: Given, row: int) -> tuple[tuple[int, float], ...]:
        if self._top is None:
            return ()
        return tuple(self._top.sample(given.logits[row], 0).top)
