"""`PromptLogprobsRequest`: asks for log-probabilities of a prompt's tokens, and for no answer."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.decoding.allowed_tokens import mask_words
from sterna.engine.decoding.sampling import Draw
from sterna.engine.decoding.speculation import StepCost, default_step_cost
from sterna.engine.engine import PREFILL_CHUNK, StepInput, StepOutput
from sterna.engine.request import Request
from sterna.errors import NonFiniteError
from sterna.outputs import TokenLogprob
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

__all__ = ["PromptLogprobsRequest", "log_probabilities", "logprobs_draw", "step_tokens"]

I32 = npt.NDArray[np.int32]

STEP_LOGITS = 1 << 25  # logits of a step: 128 MiB


def step_tokens(vocab: int) -> int:
    """Return most tokens of a step that wants all logits: fewer for large vocabularies."""
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
        raise NonFiniteError(
            "scores: log-probabilities must be finite, but got NaN or infinity; "
            "the model's weights are damaged"
        )
    return logprobs


class PromptLogprobsRequest(Request):
    """A request for `LLM.prompt_logprobs`: a prompt to be scored, and no answer.

    It computes its whole prompt, since a prefix cache keeps no logits. top: how many of the
    likeliest tokens to report for each token; options: as of `Request`.
    """

    uses_prefix_cache = False

    def __init__(
        self,
        prompt: SequenceOf[int],
        top: int,
        tokenizer: Tokenizer,
        *,
        context: int,
        vocab: int,
        **options: Any,
    ) -> None:
        none = SamplingParams(max_tokens=0)
        super().__init__(prompt, none, tokenizer, context=context, vocab=vocab, **options)
        #: Log-probability of each token of the prompt; None for the first.
        self.scores: list[TokenLogprob | None] = [None] * len(prompt)
        self._top = top

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
        return self.finished or self._reason is not None or None not in self.scores[1:]

    def step_input(
        self, most: int = PREFILL_CHUNK, budget: int = 0, costs: StepCost = default_step_cost,
        others: int = 0,
    ) -> StepInput:  # fmt: skip
        """Return `Request.step_input`'s input, with the next token's log-probability after each."""
        begin = self.sequence.length
        end = min(begin + most, begin + step_tokens(self._vocab), self.n_prompt - 1)
        draw = logprobs_draw(self._history[: end + 1], end - begin, self._vocab, self._top)
        part = self._history[begin:end]
        return StepInput(self.sequence, part, end - begin, draw=draw, adapter=self.adapter)

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
