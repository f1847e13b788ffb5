"""`GrammarMatcher`: follows one answer through a grammar, for masks and for forced tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sterna.engine.decoding.allowed_tokens import clear_bits, mask_words, set_bits
from sterna.engine.decoding.reasoning_budget import ReasoningBudget
from sterna.errors import RequestError

if TYPE_CHECKING:
    from llguidance import LLMatcher

__all__ = ["GrammarMatcher"]

I32 = npt.NDArray[np.int32]


class GrammarMatcher:
    """Follows one answer through a grammar, by a matcher of llguidance.

    matcher: at the begin of the answer, and not shared; vocab: tokens of the model; own_ends: ids
    by which the matcher says that the text may end; reasoning: the budget of an answer that begins
    with reasoning.
    Methods raise RequestError if the grammar proves too complex for llguidance's limits: the answer
    ends then, and never continues unconstrained.
    """

    def __init__(
        self,
        matcher: LLMatcher,
        vocab: int,
        own_ends: Sequence[int],
        reasoning: ReasoningBudget | None = None,
    ) -> None:
        self._matcher, self._vocab, self._own_ends = matcher, vocab, own_ends
        self._reasoning = reasoning
        self._followed = 0
        self.ended: bool = matcher.is_stopped()

    @property
    def idle(self) -> bool:
        """Whether every token is allowed, from now on."""
        return False

    def follow(self, answer: I32) -> None:
        """Take the answer so far, int32 [n], without its end token; only new tokens count."""
        new = answer[self._followed :].tolist()
        if new and not self.ended:
            self._matcher.consume_tokens(new)
            self._check()
            if self._reasoning:
                self._reasoning = self._reasoning.after(new)
            #: Whether the text is complete, so that nothing may follow.
            self.ended = self._matcher.is_stopped()
        self._followed = len(answer)

    def valid(self, drafts: list[int]) -> int:
        """Return how many of the drafts, from the first on, the grammar allows."""
        if self.ended:
            return 0
        count = self._matcher.validate_tokens(drafts)
        if self._reasoning:
            reasoning = self._reasoning.after(())
            for i, token in enumerate(drafts[:count]):
                if reasoning.due() not in (None, token):
                    return i
                reasoning.take(token)
        return count

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next: those that the grammar leaves no choice about."""
        if self.ended:
            return []
        due = self._reasoning.due() if self._reasoning else None
        return self._matcher.compute_ff_tokens() if due is None else [due]

    def masks(self, drafts: list[int], ends: Sequence[int]) -> I32:
        """Return masks of the tokens allowed next and after each draft, int32 [1 + drafts, words].

        drafts: all `valid`; ends: ids to allow where the text may end.
        """
        masks = np.zeros((1 + len(drafts), mask_words(self._vocab)), np.int32)
        reasoning = self._reasoning.after(()) if self._reasoning else None
        for i, mask in enumerate(masks):
            if i:
                self._matcher.consume_token(drafts[i - 1])
                if reasoning:
                    reasoning.take(drafts[i - 1])
            if reasoning and (due := reasoning.due()) is not None:
                set_bits(mask, [due])
                continue
            self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
            clear_bits(mask, self._own_ends)
            if self._matcher.is_accepting():
                set_bits(mask, ends)
        if drafts:
            self._matcher.rollback(len(drafts))
        self._check()
        return masks

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(
                "constraint: must be simple enough for each token's limits, but the grammar's "
                f"parser gave up: {self._matcher.get_error().splitlines()[0]}"
            )
