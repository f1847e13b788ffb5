"""Fingerprints of all that answers depend on, and digests of prompt and answer.

Together they are a receipt, which another machine can check.

The same request, seed and fingerprint give the same tokens, alone or among others, on any machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from sterna.llm import LLM
from sterna.llm.adapters import AdapterChoice

__all__ = ["digest", "fingerprint"]


def fingerprint(llm: LLM, adapter: AdapterChoice = None) -> str:
    """Return a hash of everything that the bits of answers depend on, except the request.

    It covers the engine's `identity`, the tokenizer, the template, and the adapter of this name, or
    with these scales, or the default one. The first call reads all weights, about a second for
    1.5 GB.
    """
    template = llm.template.digest if llm.template else None
    parts = [*llm.engine.identity, llm.tokenizer.digest, template]
    chosen = llm.adapters.chosen(adapter)
    if chosen is not None:
        parts.append(chosen.digest)
    return "st-" + hashlib.sha256(repr(parts).encode()).hexdigest()[:24]


def digest(sequences: Iterable[Sequence[int]]) -> str:
    """SHA-256, in hex, of the length and the ids of each sequence, as little-endian uint32."""
    sha256 = hashlib.sha256()
    for tokens in sequences:
        sha256.update(np.array([len(tokens), *tokens], "<u4").tobytes())
    return sha256.hexdigest()
