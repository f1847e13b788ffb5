"""The merges of a vocabulary whose tokens have scores or ranks instead of a list of merges."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sterna import _native
from sterna.checkpoints.token_arrays import token_arrays

__all__ = ["scored_merges"]

MAX_PIECE_CHARS = 256  # SentencePiece makes at most 512 bytes; longer ones are not cut into merges


def scored_merges(ids: Mapping[str, int], scores: NDArray[np.float64]) -> list[tuple[str, str]]:
    """Derive the merges of a BPE, in their order.

    Any two tokens whose joined text is a token may merge, the highest score first.

    Args:
        ids: Tokens and their ids; at least one.
        scores: By id, and longer than the greatest id. NaN: the token comes of no merge.
    """
    arrays = token_arrays(ids)
    tokens = _native.Tokens(**arrays)
    pairs = _native.scored_merges(tokens, scores[: len(tokens)], MAX_PIECE_CHARS)
    names = {id: token for token, id in ids.items()}
    left, right = (map(names.__getitem__, side.tolist()) for side in pairs.T)
    return list(zip(left, right, strict=True))
