"""DRY's sequence breakers, which are texts, as sequences of token ids.

The sampler needs the sequences that begin with a token of the text so far. So tokens are looked at
as they come, and never the whole vocabulary, which takes seconds for 262k tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

__all__ = ["SequenceBreakers", "with_breaker_ids"]

I32 = npt.NDArray[np.int32]
Ids = tuple[int, ...]
#: Texts whose sequences are kept for a tokenizer.
MOST_KEPT = 64


class _Spellings:
    """The sequences of tokens that spell a text or contain it, by their first token."""

    def __init__(self, text: str, tokenizer: Tokenizer) -> None:
        self._whole = text.encode(errors="replace")
        whole = self._whole
        self._rests = [_rest(whole[n:], tokenizer) for n in range(1, len(whole))]
        self._found: dict[int, tuple[Ids, ...]] = {}

    def beginning_with(self, id: int, tokenizer: Tokenizer) -> tuple[Ids, ...]:
        """Return the token if it contains the text; if it ends with a begin of it, with the tokens
        of the rest."""
        if id not in self._found:
            data = tokenizer.token_bytes(id)
            spellings: list[Ids] = [(id,)] if self._whole in data else []
            for n, rest in enumerate(() if spellings else self._rests, 1):
                if rest and data.endswith(self._whole[:n]):
                    spellings.append((id, *rest))
            self._found[id] = tuple(spellings)
        return self._found[id]


def _rest(rest: bytes, tokenizer: Tokenizer) -> Ids:
    """Return the tokens of a text's end, without a space that a tokenizer puts before a text; none
    if there are no such tokens."""
    try:
        text = rest.decode()
    except UnicodeDecodeError:  # it begins within a character
        return ()
    for before in ("", "\n"):
        ids = tokenizer.encode(before + text, add_special=False)
        for begin in range(len(ids)):
            if b"".join(tokenizer.token_bytes(id) for id in ids[begin:]) == rest:
                return tuple(ids[begin:])
    return ()


_of_tokenizer: WeakKeyDictionary[Tokenizer, dict[str, _Spellings]] = WeakKeyDictionary()


def _spellings(text: str, tokenizer: Tokenizer) -> _Spellings:
    cached = _of_tokenizer.setdefault(tokenizer, {})
    if text not in cached:
        if len(cached) >= MOST_KEPT:
            cached.clear()
        cached[text] = _Spellings(text, tokenizer)
    return cached[text]


class SequenceBreakers:
    """The breakers of one request."""

    def __init__(self, params: SamplingParams, tokenizer: Tokenizer) -> None:
        texts = [one for one in params.dry_sequence_breakers if isinstance(one, str)]
        on = params.dry_multiplier > 0
        self._params, self._tokenizer = params, tokenizer
        self._spellings = [_spellings(text, tokenizer) for text in texts if on]
        ids = [tuple(one) for one in params.dry_sequence_breakers if not isinstance(one, str)]
        self._ids: dict[Ids, None] = dict.fromkeys(ids)
        self._seen: set[int] = set()
        self._checked = 0  # tokens of the history

    def params(self, history: I32, known: int) -> SamplingParams:
        """Return the parameters for draws after a history, whose first `known` tokens stay."""
        if self._spellings:
            self._add(np.unique(history[self._checked :]).tolist())
            self._checked = known
        return self._params

    def native(self, history: I32, known: int) -> _native.SampleParams:
        """Return `params` as the native sampler takes them."""
        return self.params(history, known).native

    def _add(self, tokens: Iterable[int]) -> None:
        """Add the sequences that begin with these tokens."""
        before = len(self._ids)
        for id in set(tokens) - self._seen:
            self._seen.add(id)
            for one in self._spellings:
                self._ids.update(dict.fromkeys(one.beginning_with(id, self._tokenizer)))
        if len(self._ids) > before:
            self._params = replace(self._params, dry_sequence_breakers=tuple(self._ids))


def with_breaker_ids(
    params: SamplingParams, tokenizer: Tokenizer, tokens: Iterable[int]
) -> SamplingParams:
    """Return parameters whose sequence breakers are token ids, those that begin with a token of
    `tokens`."""
    history = np.fromiter(tokens, np.int32)
    return SequenceBreakers(params, tokenizer).params(history, len(history))
