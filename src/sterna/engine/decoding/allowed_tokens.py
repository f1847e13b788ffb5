"""`AllowedTokens`: masks for allowed_token_ids, bad_words and min_tokens, one bit a token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sterna.errors import RequestError, shown
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

__all__ = ["AllowedTokens", "clear_bits", "mask_words", "set_bits"]

I32 = npt.NDArray[np.int32]


def mask_words(vocab: int) -> int:
    """Return the number of 32-bit words in a mask of this many tokens."""
    return -(-vocab // 32)


class AllowedTokens:
    """The tokens that allowed_token_ids, bad_words and min_tokens of a request allow.

    A bad word is tokenised twice, as at the begin of a text and as after a space; its last token is
    forbidden where prompt and answer end with its other tokens. ends: ids that end the answer,
    forbidden before min_tokens. vocab: tokens of the model. Raises RequestError if no token could
    ever be allowed.
    """

    def __init__(
        self, params: SamplingParams, tokenizer: Tokenizer, ends: frozenset[int], vocab: int
    ) -> None:
        self._min_tokens = params.min_tokens
        self._ends = sorted(ends) if params.min_tokens else []
        self._words = _bad_words(params, tokenizer)
        #: Whether all tokens are allowed at every position.
        self.all: bool = params.allowed_token_ids is None and not self._ends and not self._words
        listed = params.allowed_token_ids
        self._base = _bits(listed, vocab)
        if listed is not None and not self._without_ends().any():
            raise RequestError(
                "allowed_token_ids: must have a token that does not end an answer, for min_tokens, "
                f"but got {shown(listed)}"
            )

    def _without_ends(self) -> I32:
        base: I32 = self._base.copy()
        clear_bits(base, self._ends)
        return base

    def mask(self, history: I32, in_answer: int) -> I32:
        """Return a new mask, int32 [words], for the token after `history`.

        in_answer: how many tokens of the history, the last ones, are the answer's.
        """
        mask: I32 = self._base.copy()
        if in_answer < self._min_tokens:
            clear_bits(mask, self._ends)
        for *before, last in self._words:
            n = len(before)
            if n <= len(history) and history[len(history) - n :].tolist() == before:
                clear_bits(mask, (last,))
        return mask


def _bad_words(params: SamplingParams, tokenizer: Tokenizer) -> list[tuple[int, ...]]:
    words: dict[tuple[int, ...], None] = {}
    for word in params.bad_words:
        if not isinstance(word, str):
            words[tuple(word)] = None
            continue
        for text in (word, " " + word.lstrip()):
            if ids := tokenizer.encode(text, add_special=False):
                words[tuple(ids)] = None
    return list(words)


def _bits(ids: Sequence[int] | None, vocab: int) -> I32:
    """Return a mask of these tokens, or of all if `ids` is None."""
    mask = np.full(mask_words(vocab), -1 if ids is None else 0, np.int32)
    if ids is None:
        clear_bits(mask, range(vocab, 32 * len(mask)))
    else:
        set_bits(mask, ids)
    return mask


def clear_bits(mask: I32, ids: Sequence[int]) -> None:
    """Forbid tokens."""
    words = mask.view(np.uint32)
    for id in ids:
        words[id // 32] &= np.uint32(~(1 << id % 32) & 0xFFFFFFFF)


def set_bits(mask: I32, ids: Sequence[int]) -> None:
    """Allow tokens."""
    words = mask.view(np.uint32)
    for id in ids:
        words[id // 32] |= np.uint32(1 << id % 32)
