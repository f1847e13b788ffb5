"""`GrammarMatcher`: follows one answer through a grammar, for masks and for forced tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(slots=True)
class _Path:
    """A matcher of llguidance that follows the answer.

    taken: how many of the answer's tokens it has taken; has_mask: whether it has made the mask of
    the next one; reasoning: the budget after these tokens.
    """

    matcher: LLMatcher
    reasoning: ReasoningBudget | None
    taken: int = 0
    has_mask: bool = False

    def take(self, token: int) -> None:
        self.matcher.consume_token(token)
        self.taken, self.has_mask = self.taken + 1, False
        if self.reasoning:
            self.reasoning.take(token)

    def due(self) -> int | None:
        """Return the token that must come next to close reasoning, else None.

        The grammar allows it within reasoning. Where it does not, the answer has begun with what
        only looked like the begin of a mark, such as a space or "<".
        """
        due = self.reasoning.due() if self.reasoning else None
        if due is not None and not self.matcher.validate_tokens([due]):
            due = self.reasoning = None
        return due

    def copy(self) -> _Path:
        return _Path(self.matcher.deep_copy(), _copy(self.reasoning), self.taken)


class GrammarMatcher:
    """Follows one answer through a grammar, by matchers of llguidance.

    compiled: returns a matcher at the begin of the answer, which shares nothing with other ones;
    vocab: tokens of the model; own_ends: ids by which a matcher says that the text may end;
    reasoning: the budget of an answer that begins with reasoning.
    Methods raise RequestError if the grammar proves too complex for llguidance's limits: the answer
    ends then, and never continues unconstrained.

    Two paths follow the answer, since drafts depend on time and must not decide anything. A limit
    of llguidance counts the work that no earlier mask has done, its errors are final, and copies
    of a matcher share both. So accepted tokens have a path of their own, with a mask before each
    token as if there were no drafts. Drafts go along copies of the second path. Only masks come
    back from there.
    """

    def __init__(
        self,
        compiled: Callable[[], LLMatcher],
        vocab: int,
        own_ends: Sequence[int],
        reasoning: ReasoningBudget | None = None,
    ) -> None:
        self._compiled, self._vocab, self._own_ends = compiled, vocab, own_ends
        self._budget = reasoning
        self._answer: list[int] = []
        # None at the begin and while they change: an interrupt anywhere makes them anew.
        self._accepted: _Path | None = None
        self._ahead: _Path | None = None
        self._takes_drafts = True
        #: Whether the text is complete, so that nothing may follow.
        self.ended: bool = False

    @property
    def idle(self) -> bool:
        """Whether every token is allowed, from now on."""
        return False

    def follow(self, answer: I32) -> None:
        """Take the answer so far, int32 [n], without its end token; only new tokens count."""
        self._answer += answer[len(self._answer) :].tolist()
        path = self._accepted
        if self._answer and not self.ended and not (path and path.taken == len(self._answer)):
            self._accepted = self._followed()

    def valid(self, drafts: list[int]) -> int:
        """Return how many of the drafts, from the first on, the grammar allows as text."""
        path = self._path_ahead() if drafts else None
        if path is None:
            return 0
        # An end token is no text: a matcher that has taken one cannot go on.
        ends = (i for i, token in enumerate(drafts) if token in self._own_ends)
        count = path.matcher.validate_tokens(drafts[: next(ends, None)])
        reasoning = _copy(path.reasoning)
        for i, token in enumerate(drafts[:count]):
            if reasoning:
                if reasoning.due() not in (None, token):
                    return i
                reasoning.take(token)
        return count

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next: those that the grammar leaves no choice about."""
        path = self._path_ahead()
        if path is None:
            return []
        due = path.due()
        return path.matcher.compute_ff_tokens() if due is None else [due]

    def masks(self, drafts: list[int], ends: Sequence[int]) -> I32:
        """Return masks of the tokens allowed next and after each draft, int32 [1 + drafts, words].

        drafts: all `valid`; ends: ids to allow where the text may end. If the drafts lead to where
        the grammar is too complex, the masks from there on are left out.
        """
        masks = np.zeros((1 + len(drafts), mask_words(self._vocab)), np.int32)
        path, self._accepted = self._followed(), None
        self._fill(masks[0], path, ends)
        _check(path.matcher)
        self._accepted = path
        return masks[: 1 + self._fill_ahead(masks[1:], drafts, ends)]

    def _followed(self) -> _Path:
        """Return the path of accepted tokens, at the end of the answer."""
        path, self._accepted = self._accepted, None
        path = path or _Path(self._compiled(), _copy(self._budget))
        for token in self._answer[path.taken :]:
            if not path.has_mask:
                self._fill(np.zeros(mask_words(self._vocab), np.int32), path)
            path.take(token)
        _check(path.matcher)
        self.ended = path.matcher.is_stopped()
        return path

    def _path_ahead(self) -> _Path | None:
        """Return the path that drafts follow, at the end of the answer; None if they may not."""
        if self.ended or not self._takes_drafts:
            return None
        path, self._ahead = self._ahead, None
        path = path or _Path(self._compiled(), _copy(self._budget))
        for token in self._answer[path.taken :]:
            path.take(token)
        self._takes_drafts = not path.matcher.is_error()
        self._ahead = path
        return path if self._takes_drafts else None

    def _fill_ahead(self, masks: I32, drafts: list[int], ends: Sequence[int]) -> int:
        """Fill a mask after each draft; returns how many are right."""
        path = self._path_ahead() if drafts else None
        if path is None:
            return 0
        path = path.copy()  # not rolled back: not every grammar can be
        for i, token in enumerate(drafts):
            path.take(token)
            self._fill(masks[i], path, ends)
            if path.matcher.is_error():
                self._takes_drafts = False
                return i
        return len(drafts)

    def _fill(self, mask: I32, path: _Path, ends: Sequence[int] = ()) -> None:
        """Write the mask of a path's next token; an error stays in its matcher."""
        path.has_mask = True
        if (due := path.due()) is not None:
            set_bits(mask, [due])
            return
        may_end = path.matcher.is_accepting()  # first: its errors show in the next call
        path.matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        clear_bits(mask, self._own_ends)
        if may_end:
            set_bits(mask, ends)


def _copy(reasoning: ReasoningBudget | None) -> ReasoningBudget | None:
    return reasoning.after(()) if reasoning else None


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise RequestError(
            "constraint: must be simple enough for each token's limits, but the grammar's parser "
            f"gave up: {matcher.get_error().splitlines()[0]}"
        )
