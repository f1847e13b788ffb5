"""Requests for log-probabilities and no answer: of a prompt's own tokens, or of the next one."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.decoding.allowed_tokens import mask_words
from sterna.engine.decoding.sampling import Draw
from sterna.engine.engine import PREFILL_CHUNK, StepInput, StepOutput
from sterna.engine.request import Request
from sterna.errors import NonFiniteError
from sterna.outputs import TokenLogprob
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

__all__ = [
    "NextLogprobsRequest",
    "PromptLogprobsRequest",
    "log_probabilities",
    "logprobs_draw",
    "step_tokens",
]

I32 = npt.NDArray[np.int32]

STEP_LOGITS = 1 << 25  # logits of a step: 128 MiB
NO_ANSWER = SamplingParams(max_tokens=0)


def step_tokens(vocab: int) -> int:
    """Return the most tokens of a step that returns all logits: fewer for large vocabularies."""
    return max(1, min(PREFILL_CHUNK, STEP_LOGITS // vocab))


def logprobs_draw(history: I32, scored: int, vocab: int, top: int) -> Draw:
    """Return a draw whose results carry the log-probabilities of the last `scored` tokens.

    history: all tokens, int32 [n]; the last one is in no step. top: how many of the likeliest
    tokens to report as well, at least one. Each row's mask allows only the next token of the
    history, but log-probabilities are those of all tokens. So no logits leave the core.
    """
    targets = history[len(history) - scored :]
    masks = np.zeros((scored, mask_words(vocab)), np.int32)
    masks.view(np.uint32)[np.arange(scored), targets // 32] = np.uint32(1) << (targets % 32).astype(
        np.uint32
    )
    params = SamplingParams(logprobs=max(top, 1)).native
    return Draw(params, history[:-1], len(history) - 1, masks)


def log_probabilities(drawn: SequenceOf[_native.SampleResult]) -> list[float]:
    """Return the log-probabilities that `logprobs_draw` has drawn; raises NonFiniteError."""
    logprobs = [one.logprob if one.finite else math.nan for one in drawn]
    if not all(map(math.isfinite, logprobs)):
        raise _damaged()
    return logprobs


def _damaged() -> NonFiniteError:
    return NonFiniteError(
        "scores: log-probabilities must be finite, but got NaN or infinity; the model's weights "
        "are damaged"
    )


class PromptLogprobsRequest(Request):
    """A request for `LLM.prompt_logprobs`: a prompt to be scored, and no answer.

    top: the number of likeliest tokens to report for each token. scored: the number of last tokens
    to score; earlier tokens may come from a cached prefix. By default it computes its whole
    prompt, since a prefix cache keeps no logits. options: those of `Request`.
    """

    def __init__(
        self,
        prompt: SequenceOf[int],
        top: int,
        tokenizer: Tokenizer,
        *,
        scored: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(prompt, NO_ANSWER, tokenizer, **options)
        #: Log-probability of each token of the prompt; None for the first, and for unscored ones.
        self.scores: list[TokenLogprob | None] = [None] * len(prompt)
        self.uses_prefix_cache: bool = scored is not None
        self._first = 1 if scored is None else len(prompt) - scored  # the first scored token
        self._top = top

    @property
    def tokens(self) -> I32:
        """The tokens before the first scored one, int32: more of them are of no use to it."""
        return self._history[: self._first]

    @property
    def left(self) -> int:
        """Tokens still to be computed, all but the last of the prompt."""
        return self.n_prompt - 1 - self.sequence.length

    @property
    def max_length(self) -> int:
        """Most positions that its sequence will have."""
        return self.n_prompt - 1

    @property
    def ended(self) -> bool:
        """Whether all tokens are scored, or the request was ended."""
        return self.finished or self._reason is not None or None not in self.scores[self._first :]

    def step_input(self, most: int = PREFILL_CHUNK, *_drafting: object) -> StepInput:
        """Return `Request.step_input`'s input, with the next token's log-probability after each."""
        begin = self.sequence.length
        first = max(begin, self._first - 1)  # its row scores the token after it
        end = min(begin + most, first + step_tokens(self._vocab), self.n_prompt - 1)
        part, wanted = self._history[begin:end], max(0, end - first)
        if not wanted:
            return StepInput(self.sequence, part, adapter=self.adapter)
        draw = logprobs_draw(self._history[: end + 1], wanted, self._vocab, self._top)
        return StepInput(self.sequence, part, wanted, draw=draw, adapter=self.adapter)

    def receive(self, output: StepOutput) -> None:
        """Take a step's log-probabilities; raises NonFiniteError if any is not finite."""
        if self.finished or not output.drawn:
            return
        first = self.sequence.length + 1 - len(output.drawn)
        logprobs = log_probabilities(output.drawn)
        for i, (one, logprob) in enumerate(zip(output.drawn, logprobs, strict=True)):
            self.scores[first + i] = TokenLogprob(
                int(one.token), logprob, tuple(one.top) if self._top else ()
            )
        self._note()


class NextLogprobsRequest(Request):
    """A request for the log-probabilities of given tokens after a prompt, and for no answer.

    token_ids: at least one; options: those of `Request`.
    """

    def __init__(
        self,
        prompt: SequenceOf[int],
        token_ids: SequenceOf[int],
        tokenizer: Tokenizer,
        **options: Any,
    ) -> None:
        super().__init__(prompt, NO_ANSWER, tokenizer, **options)
        #: Natural-log probability of each of the tokens, in their order; empty until computed.
        self.logprobs: list[float] = []
        self._token_ids = np.array(token_ids, np.int32)

    @property
    def max_length(self) -> int:
        """Most positions that its sequence will have."""
        return self.n_prompt

    @property
    def ended(self) -> bool:
        """Whether the log-probabilities are complete, or the request was ended."""
        return self.finished or self._reason is not None or bool(self.logprobs)

    def step_input(self, most: int = PREFILL_CHUNK, *_drafting: object) -> StepInput:
        """Return `Request.step_input`'s input, with the logits after the last token."""
        begin = self.sequence.length
        end = min(begin + most, self.n_prompt)
        part, wanted = self._history[begin:end], int(end == self.n_prompt)
        return StepInput(self.sequence, part, wanted, adapter=self.adapter)

    def receive(self, output: StepOutput) -> None:
        """Take the last step's logits; raises NonFiniteError if any result is not finite."""
        if self.finished or not len(output.logits):
            return
        rows = (_native.log_softmax_at(output.logits, one, 1) for one in self._token_ids[:, None])
        logprobs = [float(row[0]) for row in rows]
        if not all(map(math.isfinite, logprobs)):
            raise _damaged()
        self.logprobs = logprobs
        self._note()
