"""The merges of a vocabulary whose tokens have scores or ranks instead of a list of merges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["scored_merges"]

MAX_PIECE_CHARS = 256  # SentencePiece makes at most 512 bytes; longer ones are not cut into merges


def scored_merges(
    tokens: Sequence[str], ids: Mapping[str, int], scores: Sequence[float]
) -> list[tuple[str, str]]:
    """Derive the merges of a BPE, in their order.

    Any two tokens whose joined text is a token may merge, the highest score first.
    """
    scored: list[tuple[float, int, int, tuple[str, str]]] = []
    for token, score in zip(tokens, scores, strict=True):
        if len(token) > MAX_PIECE_CHARS:
            continue
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ids and right in ids:
                scored.append((-score, ids[left], ids[right], (left, right)))
    scored.sort()
    return [pair for *_, pair in scored]
