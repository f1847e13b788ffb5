"""Merges that follow from scores are those of the rule, applied one cut after the other."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from sterna.checkpoints.merges import MAX_PIECE_CHARS, scored_merges

LETTERS = "aé日🙂"


def by_the_rule(ids: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    """Every cut of a token into two tokens, sorted."""
    cuts = [
        (-scores[id], ids[left], ids[right], (left, right))
        for token, id in ids.items()
        if not math.isnan(scores[id]) and len(token) <= MAX_PIECE_CHARS
        for left, right in ((token[:at], token[at:]) for at in range(1, len(token)))
        if left in ids and right in ids
    ]
    return [pair for *_, pair in sorted(cuts)]


SCORES = st.one_of(st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]), st.floats())


@given(st.dictionaries(st.text(LETTERS, min_size=1, max_size=5), SCORES, min_size=1))
@example(
    {
        "a": 0.0,
        "a" * 255: 1.0,
        "a" * 256: 2.0,
        "a" * 257: 3.0,
        "é" * 256: 4.0,
        "é" * 255: 0.0,
        "é": 1.0,
    }
)
def test_merges_of_scores(vocabulary: dict[str, float]) -> None:
    ids = {token: 2 * i + 1 for i, token in enumerate(vocabulary)}  # ids have gaps
    scores = [math.nan] * (2 * len(ids) + 3)
    for token, id in ids.items():
        scores[id] = vocabulary[token]
    assert scored_merges(ids, np.array(scores)) == by_the_rule(ids, scores)
