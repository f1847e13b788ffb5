"""Text to token ids, and token ids to text, by the tokenizer.json of a model folder."""

from __future__ import annotations

from sterna.tokenizer.backend import (
    MAX_TOKENIZER_BYTES,
    MAX_VOCAB,
    Backend,
    checked_backend,
    lower_case,
    read_backend,
    special_ids,
)
from sterna.tokenizer.tokenizer import Detokenizer, PairIds, Tokenizer

__all__ = [
    "MAX_TOKENIZER_BYTES",
    "MAX_VOCAB",
    "Backend",
    "Detokenizer",
    "PairIds",
    "Tokenizer",
    "checked_backend",
    "lower_case",
    "read_backend",
    "special_ids",
]
