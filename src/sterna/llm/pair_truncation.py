"""Truncation of pairs of a query and a text, as tokenizers do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sterna.checks import checked_flag, checked_whole
from sterna.tokenizer import PairIds, Tokenizer

__all__ = ["NO_LIMITS", "PairLimits", "truncated", "within_limits"]


class PairLimits(NamedTuple):
    """The most tokens of a pair, special tokens included, and of its text; 0: no limit."""

    pair: int = 0
    text: int = 0

    @classmethod
    def of(cls, truncate: object, max_tokens_per_doc: object, context: int) -> PairLimits:
        """Read the arguments of `LLM.score`. RequestError."""
        pair = 0
        if isinstance(truncate, int) and not isinstance(truncate, bool):
            pair = min(checked_whole("truncate", truncate, 1, 1 << 31), context)
        elif checked_flag("truncate", truncate):
            pair = context
        text = 0
        if max_tokens_per_doc is not None:
            text = checked_whole("max_tokens_per_doc", max_tokens_per_doc, 1, 1 << 31)
        return cls(pair, text)


NO_LIMITS = PairLimits()


def within_limits(
    tokenizer: Tokenizer, text: str, limits: PairLimits, encode: Callable[[str], list[int]]
) -> tuple[list[int], int]:
    """Return the ids of a prompt about a text, whose end is cut, and how many tokens were cut.

    encode: returns the prompt's ids. Only the text is cut, even if the rest exceeds the limit.
    """
    whole = ids = encode(text)
    if limits.text:
        text = tokenizer.first_tokens(text, limits.text)
        ids = encode(text)
    count = len(tokenizer.encode(text, add_special=False))
    while limits.pair and len(ids) > limits.pair and count > 0:
        count = max(0, count - (len(ids) - limits.pair))
        ids = encode(tokenizer.first_tokens(text, count))
    return ids, len(whole) - len(ids)


def truncated(pair: PairIds, limits: PairLimits) -> PairIds:
    """Return a pair within limits: the ends of both parts are cut, the longer one's first, until
    they are of one length, and then both."""
    counts = [pair.parts.count(part) for part in (0, 1)]
    lengths = [counts[0], min(counts[1], limits.text) if limits.text else counts[1]]
    room = limits.pair - (len(pair.ids) - sum(counts))
    if limits.pair and sum(lengths) > room:
        lengths = _longest_first(lengths[0], lengths[1], max(0, room))
    seen, places = [0, 0], list[int]()
    for place, part in enumerate(pair.parts):
        if part is not None:
            seen[part] += 1
            if seen[part] > lengths[part]:
                continue
        places.append(place)
    ids, kinds, parts = pair
    return PairIds([ids[i] for i in places], [kinds[i] for i in places], [parts[i] for i in places])


def _longest_first(first: int, second: int, room: int) -> list[int]:
    """Return how many tokens stay of two parts, by the rule "longest first" of tokenizers."""
    short = min(first, second)
    if 2 * short <= room:  # only the longer one is cut
        return [first, room - first] if first <= second else [room - second, second]
    return [room // 2, room - room // 2] if first <= second else [room - room // 2, room // 2]
