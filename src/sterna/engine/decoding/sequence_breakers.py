"""`with_breaker_ids`: DRY's sequence breakers, which are texts, as sequences of token ids."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakKeyDictionary

from sterna.sampling_params import SamplingParams
from sterna.tokenizer import Tokenizer

__all__ = ["with_breaker_ids"]

Ids = tuple[int, ...]
#: Texts whose sequences are kept for a tokenizer.
MOST_KEPT = 64


class _Breakers:
    """The sequences of token ids that spell a text, of one tokenizer.

    vocab: tokens of the model. They are found once for a text, since that reads all tokens.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._bytes = [tokenizer.token_bytes(id) for id in range(vocab)]
        self._found: dict[str, list[Ids]] = {}

    def spelling(self, text: str, tokenizer: Tokenizer) -> list[Ids]:
        """Return each token that contains the text, and each that ends with a begin of it, with the
        tokens of the rest."""
        if text not in self._found:
            if len(self._found) >= MOST_KEPT:
                self._found.clear()
            self._found[text] = self._search(text, tokenizer)
        return self._found[text]

    def _search(self, text: str, tokenizer: Tokenizer) -> list[Ids]:
        whole = text.encode(errors="replace")
        rests = [self._rest(whole[n:], tokenizer) for n in range(1, len(whole))]
        found: list[Ids] = []
        for id, data in enumerate(self._bytes):
            if whole in data:
                found.append((id,))
                continue
            for n, rest in enumerate(rests, 1):
                if rest and data.endswith(whole[:n]):
                    found.append((id, *rest))
        return found

    def _rest(self, rest: bytes, tokenizer: Tokenizer) -> Ids:
        """Return the tokens of a text's end, without a space that a tokenizer puts before a text;
        none if there are no such tokens."""
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


_of_tokenizer: WeakKeyDictionary[Tokenizer, _Breakers] = WeakKeyDictionary()


def with_breaker_ids(params: SamplingParams, tokenizer: Tokenizer, vocab: int) -> SamplingParams:
    """Return parameters whose sequence breakers are token ids. vocab: tokens of the model."""
    texts = [one for one in params.dry_sequence_breakers if isinstance(one, str)]
    if not params.dry_multiplier or not texts:
        return params
    if (breakers := _of_tokenizer.get(tokenizer)) is None:
        breakers = _of_tokenizer[tokenizer] = _Breakers(tokenizer, vocab)
    ids = {one: None for one in params.dry_sequence_breakers if not isinstance(one, str)}
    for text in texts:
        ids.update(dict.fromkeys(breakers.spelling(text, tokenizer)))
    return replace(params, dry_sequence_breakers=tuple(ids))
