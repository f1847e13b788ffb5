"""`ThinkingBudget`: closes an answer's reasoning after a number of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from sterna.chat.reasoning import Thoughts
from sterna.engine.decoding.allowed_tokens import clear_bits, mask_words, set_bits
from sterna.tokenizer import Tokenizer

__all__ = ["ROOM", "ThinkingBudget", "ThinkingMatcher"]

I32 = npt.NDArray[np.int32]

#: Share of an answer's tokens that thoughts before a constraint may not use. A model may think
#: without end, but a client that sets a constraint needs the constrained text.
ROOM = 0.5


class ThinkingBudget:
    """Follows an answer token by token, and says when its thoughts must be closed.

    opened: whether the answer begins within thoughts. budget: tokens after which the tokens
    `closing` close them. token_bytes: returns the bytes of a token. marks: what opens and closes
    thoughts. whole: whether all of `closing` must come, including the text after its marker.
    """

    __slots__ = (
        "_closes", "_closing", "_count", "_forced", "_opens", "_text", "_token_bytes", "_whole",
        "budget", "thinks",
    )  # fmt: skip

    def __init__(
        self,
        opened: bool,
        budget: int,
        closing: Sequence[int],
        token_bytes: Callable[[int], bytes],
        marks: tuple[bytes, bytes],
        whole: bool = False,
    ) -> None:
        self._closing, self._token_bytes = closing, token_bytes
        self._opens, self._closes = marks
        self._count = 0
        self._whole, self._forced = whole, 0  # how many tokens of `closing` were due and came
        self._text = self._opens if opened else b""  # the end of the answer, as long as a mark
        self.budget: int = budget
        self.thinks: bool = True  # until a mark closes thoughts, or the answer begins without

    @classmethod
    def of_marks(
        cls, thoughts: Thoughts, opened: bool, budget: int, tokenizer: Tokenizer
    ) -> ThinkingBudget:
        """Make a budget for a family's marks, with room for the mark that opens thoughts."""
        closing = tokenizer.encode(thoughts.closing, add_special=False)
        if not opened:
            budget = max(budget, len(tokenizer.encode(thoughts.opens, add_special=False)))
        marks = thoughts.opens.strip().encode(), thoughts.closes.strip().encode()
        whole = thoughts.closing.strip() != thoughts.closes.strip()
        return cls(opened, budget, closing, tokenizer.token_bytes, marks, whole)

    def take(self, token: int) -> None:
        """Take the next token of the answer."""
        self._forced += self.due() == token
        self._count += 1
        if not self.thinks:
            return
        opens, closes = self._opens, self._closes
        text = (self._text + self._token_bytes(token)).lstrip()
        start = text[: len(opens)]
        self.thinks = opens.startswith(start) and closes not in text[len(opens) :]
        self._text = text if len(text) < len(opens) else opens + text[len(opens) :][-len(closes) :]

    def due(self) -> int | None:
        """Return the token that must come next once thoughts have used their budget, else None."""
        begun = self._whole and self._forced > 0
        if self._count < self.budget or not (self.thinks or begun):
            return None
        return self._closing[self._forced] if self._forced < len(self._closing) else None

    @property
    def done(self) -> bool:
        """Whether no token will be due any more."""
        return not self.thinks and self.due() is None

    def after(self, tokens: Sequence[int]) -> ThinkingBudget:
        """Return a copy that has taken more tokens."""
        marks = self._opens, self._closes
        other = ThinkingBudget(
            False, self.budget, self._closing, self._token_bytes, marks, self._whole
        )
        other._count, other._text, other.thinks = self._count, self._text, self.thinks
        other._forced = self._forced
        for token in tokens:
            other.take(token)
        return other


class ThinkingMatcher:
    """Holds an answer without a grammar to its budget of thoughts, as a `GrammarMatcher` would.

    vocab: tokens of the model.
    """

    #: Whether nothing may follow.
    ended = False

    def __init__(self, thinking: ThinkingBudget, vocab: int) -> None:
        self._thinking, self._vocab = thinking, vocab
        self._followed = 0

    @property
    def idle(self) -> bool:
        """Whether every token is allowed, from now on."""
        return self._thinking.done

    def follow(self, answer: I32) -> None:
        """Take the answer so far, int32 [n]; only new tokens count."""
        self._thinking = self._thinking.after(answer[self._followed :].tolist())
        self._followed = len(answer)

    def valid(self, drafts: list[int]) -> int:
        """Return how many of the drafts, from the first on, are allowed."""
        thinking = self._thinking.after(())
        for i, token in enumerate(drafts):
            if thinking.due() not in (None, token):
                return i
            thinking.take(token)
        return len(drafts)

    def forced_tokens(self) -> list[int]:
        """Return the tokens that must come next."""
        due = self._thinking.due()
        return [] if due is None else [due]

    def masks(self, drafts: list[int], ends: Sequence[int]) -> I32:
        """Return masks of the tokens allowed next and after each draft.

        They are int32 [1 + drafts, words].
        """
        masks = np.full((1 + len(drafts), mask_words(self._vocab)), -1, np.int32)
        thinking = self._thinking.after(())
        for i, mask in enumerate(masks):
            if i:
                thinking.take(drafts[i - 1])
            clear_bits(mask, range(self._vocab, 32 * len(mask)))
            if (due := thinking.due()) is not None:
                mask[:] = 0
                set_bits(mask, [due])
        return masks
