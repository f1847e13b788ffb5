"""A vocabulary as the arrays that `_native.Tokens` looks up where they lie."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sterna import _native

__all__ = ["token_arrays"]

_GAP = b"\xff"


def token_arrays(vocab: Mapping[str, int]) -> dict[str, NDArray[Any]]:
    """Return the arguments of `_native.Tokens`; vocab: tokens and their ids, at least one."""
    tokens = [_GAP] * (max(vocab.values()) + 1)
    for token, id in vocab.items():
        tokens[id] = token.encode()
    starts = np.zeros(len(tokens) + 1, np.uint32)
    np.cumsum([len(token) for token in tokens], out=starts[1:])
    text = np.frombuffer(b"".join(tokens), np.uint8)
    return {"starts": starts, "text": text, "slots": _native.token_slots(starts, text)}
