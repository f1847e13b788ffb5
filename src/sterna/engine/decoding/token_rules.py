"""`TokenRules`: masks of the tokens that a request's constraint and parameters allow next."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.engine.decoding.allowed_tokens import AllowedTokens, mask_words
from sterna.engine.decoding.grammar_matcher import GrammarMatcher
from sterna.engine.decoding.reasoning_budget import ReasoningMatcher
from sterna.engine.decoding.token_masks import TokenMasks
from sterna.errors import RequestError

__all__ = ["TokenRules"]

I32 = npt.NDArray[np.int32]


class TokenRules:
    """The rules for the next tokens of one request.

    allowed: ids that its parameters allow; matcher: its constraint's, or None; ends: ids that end
    the answer; vocab: tokens of the model.
    """

    def __init__(
        self,
        allowed: AllowedTokens,
        matcher: GrammarMatcher | ReasoningMatcher | None,
        ends: frozenset[int],
        vocab: int,
    ) -> None:
        self._allowed = allowed
        self.matcher = matcher
        self._ends, self._words = sorted(ends), mask_words(vocab)

    def masks(self, history: I32, n_known: int, n_prompt: int) -> TokenMasks | None:
        """Return masks for the token after the first `n_known` tokens and after each that follows.

        history: prompt, answer and drafts, int32. None: every token is allowed. Masks that need a
        grammar are still to be filled, which a step does while it runs.
        """
        free = self.matcher is None or self._is_idle(history[n_prompt:n_known])
        if free and self._allowed.all:
            return None
        rows = 1 + len(history) - n_known
        masks = TokenMasks(
            rows, self._words, lambda words: self._fill(words, history, n_known, n_prompt)
        )
        if self.matcher is None:
            masks.make()  # a few bits are no work for a thread
        return masks

    def _is_idle(self, answer: I32) -> bool:
        """Whether the matcher allows everything from now on."""
        if isinstance(self.matcher, ReasoningMatcher):
            self.matcher.follow(answer)
        return self.matcher is not None and self.matcher.idle

    def _fill(self, words: I32, history: I32, n_known: int, n_prompt: int) -> int:
        """Write the masks; returns how many are right."""
        words[:] = -1
        right = len(words)
        if self.matcher is not None:
            self.matcher.follow(history[n_prompt:n_known])
            made = self.matcher.masks(history[n_known:].tolist(), self._ends)
            right = len(made)
            words[:right] = made
        for i, mask in enumerate(words[:right]):
            if not self._allowed.all:
                mask &= self._allowed.mask(history[: n_known + i], n_known + i - n_prompt)
            if not mask.any() and i == 0:
                raise RequestError(
                    "answer: must have a next token, but constraint, allowed_token_ids, bad_words "
                    f"and min_tokens leave no token after {n_known - n_prompt}"
                )
            if not mask.any():  # said in the next step, if this one's drafts are right
                mask[:] = -1
                return i
        return right
