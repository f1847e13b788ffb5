"""Numbers that replace the ids of image tokens where prefixes are compared.

A number is negative, so that it differs from all tokens, and a process gives it to one digest only.
So images are compared exactly, as tokens are. On disk, digests identify them.
"""

from __future__ import annotations

import threading

import numpy as np

__all__ = ["number_of", "on_disk"]

_numbers: dict[bytes, int] = {}
_digests: list[bytes] = []
_lock = threading.Lock()


def number_of(digest: bytes) -> int:
    """Return the number of the image with this digest, -1 or less; the same as long as the process
    runs."""
    with _lock:
        if digest not in _numbers:
            _digests.append(digest)
            _numbers[digest] = -len(_digests)
        return _numbers[digest]


def on_disk(tokens: bytes) -> tuple[bytes, bytes]:
    """Return the tokens of a page, int32, as other processes may read them, and the digests of its
    images: -1 is the first of these."""
    ids = np.frombuffer(tokens, np.int32)
    if len(ids) == 0 or ids.min() >= 0:
        return tokens, b""
    seen = list(dict.fromkeys(ids[ids < 0].tolist()))
    ids = ids.copy()
    for i, number in enumerate(seen):
        ids[np.frombuffer(tokens, np.int32) == number] = -1 - i
    return ids.tobytes(), b"".join(_digests[-1 - number] for number in seen)
