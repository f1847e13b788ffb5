"""`Scoring`: a prompt whose tokens' log-probabilities are wanted, beside requests for answers."""

from __future__ import annotations

import math
from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.engine.allowed import mask_words
from sterna.engine.drafts import Costs, usual_costs
from sterna.engine.engine import PREFILL_CHUNK, StepInput, StepOutput
from sterna.engine.request import Request
from sterna.engine.sampling import Draw
from sterna.errors import NonFiniteError
from sterna.outputs import TokenLogprob
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

__all__ = ["Scoring", "log_probabilities", "scoring_draw", "step_tokens"]

I32 = npt.NDArray[np.int32]

STEP_LOGITS = 1 << 25  # logits of a step: 128 MiB


def step_tokens(vocab: int) -> int:
    """Tokens of a step whose logits are all wanted: PREFILL_CHUNK, fewer for large vocabularies."""
    return max(1, min(PREFILL_CHUNK, STEP_LOGITS // vocab))


def scoring_draw(history: I32, scored: int, vocab: int, top: int) -> Draw:
    """What gives the log-probabilities of the last `scored` tokens, of the rows before each.

    history: all tokens, the last of which is in no step, int32 [n]. A row may draw its token alone,
    whose log-probability is one of all tokens' all the same, beside those of the likeliest, top of
    them (at least one). So no logits leave the core.
    """
    targets = history[len(history) - scored :]
    masks = np.zeros((scored, mask_words(vocab)), np.int32)
    masks.view(np.uint32)[np.arange(scored), targets // 32] = np.uint32(1) << (targets % 32).astype(
        np.uint32
    )
    params = SamplingParams(logprobs=max(top, 1)).native
    return Draw(params, history[:-1], len(history) - 1, masks)


def log_probabilities(drawn: SequenceOf[_native.SampleResult]) -> list[float]:
    """Those of what `scoring_draw` has drawn; NonFiniteError."""
    logprobs = [one.logprob if one.finite else math.nan for one in drawn]
    if not all(map(math.isfinite, logprobs)):
        raise NonFiniteError(
            "scores: log-probabilities must be finite, but got NaN or infinity; "
            "the model's weights are damaged"
        )
    return logprobs


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
        **place: Any,
    ) -> None:
        none = SamplingParams(max_tokens=0)
        super().__init__(prompt, none, tokenizer, context=context, vocab=vocab, **place)
        #: Of each token of the prompt; of the first there is none.
        self.scores: list[TokenLogprob | None] = [None] * len(prompt)
        self._top = top

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

    def step_input(
        self, most: int = PREFILL_CHUNK, budget: int = 0, costs: Costs = usual_costs,
        others: int = 0,
    ) -> StepInput:  # fmt: skip
        """As `Request.step_input`, with the next token's log-probability after each."""
        begin = self.sequence.length
        end = min(begin + most, begin + step_tokens(self._vocab), self.n_prompt - 1)
        draw = scoring_draw(self._history[: end + 1], end - begin, self._vocab, self._top)
        part = self._history[begin:end]
        return StepInput(self.sequence, part, end - begin, draw=draw, adapter=self.adapter)

    def receive(self, output: StepOutput) -> None:
        """Takes a step's log-probabilities; NonFiniteError where they are not finite."""
        if self.finished or not output.drawn:
            return
        first = self.sequence.length + 1 - len(output.drawn)
        logprobs = log_probabilities(output.drawn)
        for i, (one, logprob) in enumerate(zip(output.drawn, logprobs, strict=True)):
            self.scores[first + i] = TokenLogprob(
                int(one.token), logprob, tuple(one.top) if self._top else ()
            )
        self._note()
