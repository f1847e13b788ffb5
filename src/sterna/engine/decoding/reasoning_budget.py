"""`ReasoningBudget`: closes an answer's reasoning after a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sterna.chat.reasoning import ReasoningMarks
from sterna.engine.decoding.allowed_tokens import clear_bits, mask_words, set_bits
from sterna.tokenizer import Tokenizer

__all__ = ["ROOM", "ReasoningBudget", "ReasoningMatcher"]

I32 = npt.NDArray[np.int32]

#: Share of an answer's tokens that reasoning before a constraint may not use. A model may think
#: without end, but a client that sets a constraint needs the constrained text.
ROOM = 0.5


class ReasoningBudget:
    """Follows an answer token by token, and says when its reasoning must be closed.

    opened: whether the answer begins within reasoning. budget: tokens after which the tokens
    `closing` close them. token_bytes: returns the bytes of a token. marks: what opens reasoning,
    and all that closes it. whole: whether all of `closing` must come, including the text after its
    marker.
    """

    __slots__ = tuple(
        """
        _closes _closing _count _forced _kept _opens _text _token_bytes _whole budget is_open
        """.split()
    )

    def __init__(
        self,
        opened: bool,
        budget: int,
        closing: Sequence[int],
        token_bytes: Callable[[int], bytes],
        marks: tuple[bytes, ...],
        whole: bool = False,
    ) -> None:
        self._closing, self._token_bytes = closing, token_bytes
        self._opens, *self._closes = marks
        self._kept = max(map(len, self._closes))
        self._count = 0
        self._whole, self._forced = whole, 0  # how many tokens of `closing` were due and came
        self._text = self._opens if opened else b""  # the end of the answer, as long as a mark
        self.budget: int = budget
        self.is_open: bool = True  # until a mark closes reasoning, or the answer begins without

    @classmethod
    def of_marks(
        cls, marks: ReasoningMarks, opened: bool, budget: int, tokenizer: Tokenizer
    ) -> ReasoningBudget:
        """Make a budget for a family's marks, with room for the mark that opens reasoning."""
        closing = tokenizer.encode(marks.closing, add_special=False)
        if not opened:
            budget = max(budget, len(tokenizer.encode(marks.opens, add_special=False)))
        ends = (marks.opens.strip(), marks.closes.strip(), *marks.calls)
        texts = tuple(text.encode() for text in ends)
        whole = marks.closing.strip() != marks.closes.strip()
        return cls(opened, budget, closing, tokenizer.token_bytes, texts, whole)

    def take(self, token: int) -> None:
        """Take the next token of the answer."""
        self._forced += self.due() == token
        self._count += 1
        if not self.is_open:
            return
        opens = self._opens
        text = (self._text + self._token_bytes(token)).lstrip()
        start = text[: len(opens)]
        behind = text[len(opens) :]
        self.is_open = opens.startswith(start) and not any(end in behind for end in self._closes)
        self._text = text if len(text) < len(opens) else opens + behind[-self._kept :]

    def due(self) -> int | None:
        """Return the token that must come next once reasoning has used its budget, else None."""
        begun = self._whole and self._forced > 0
        if self._count < self.budget or not (self.is_open or begun):
            return None
        return self._closing[self._forced] if self._forced < len(self._closing) else None

    @property
    def done(self) -> bool:
        """Whether no token will be due any more."""
        return not self.is_open and self.due() is None

    def after(self, tokens: Sequence[int]) -> ReasoningBudget:
        """Return a copy that has taken more tokens."""
        marks = self._opens, *self._closes
        other = ReasoningBudget(
            False, self.budget, self._closing, self._token_bytes, marks, self._whole
        )
        other._count, other._text, other.is_open = self._count, self._text, self.is_open
        other._forced = self._forced
        for token in tokens:
            other.take(token)
        return other


class ReasoningMatcher:
    """Holds an answer without a grammar to its budget of reasoning, as a `GrammarMatcher` would.

    vocab: tokens of the model.
    """

    #: Whether nothing may follow.
    ended = False

    def __init__(self, reasoning: ReasoningBudget, vocab: int) -> None:
        self._reasoning, self._vocab = reasoning, vocab
        self._followed = 0

    @property
    def idle(self) -> bool:
        """Whether every token is allowed, from now on."""
        return self._reasoning.done

    def follow(self, answer: I32) -> None:
        """Take the answer so far, int32 [n]; only new tokens count."""
        self._reasoning = self._reasoning.after(answer[self._followed :].tolist())
        self._followed = len(answer)

    def valid(self, drafts: list[int]) -> int:
        """Return how many of the drafts, from the first on, are allowed."""
        reasoning = self._reasoning.after(())
        for i, token in enumerate(drafts):
            if reasoning.due() not in (None, token):
                return i
            reasoning.take(token)
        return len(drafts)

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next."""
        due = self._reasoning.due()
        return [] if due is None else [due]

    def masks(self, drafts: list[int], ends: Sequence[int]) -> I32:
        """Return masks of the tokens allowed next and after each draft.

        They are int32 [1 + drafts, words].
        """
        masks = np.full((1 + len(drafts), mask_words(self._vocab)), -1, np.int32)
        reasoning = self._reasoning.after(())
        for i, mask in enumerate(masks):
            if i:
                reasoning.take(drafts[i - 1])
            clear_bits(mask, range(self._vocab, 32 * len(mask)))
            if (due := reasoning.due()) is not None:
                mask[:] = 0
                set_bits(mask, [due])
        return masks
