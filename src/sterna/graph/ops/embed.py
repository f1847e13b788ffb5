"""Rows of the embedding's table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.ops.base import LATER, Value, WeightOp

__all__ = ["EmbedOp"]


@dataclass(eq=False, kw_only=True)
class EmbedOp(WeightOp):
    """Rows of a table [vocab, width] for the batch's tokens, times the factor.

    first_for_rest: the table may be shorter; tokens behind its last row take its first.
    image_token: the token whose row stands where images stand; -1: their features do.
    """

    kind: ClassVar[str] = "embed"
    name: str = "embed_tokens"
    factor: float = 1.0
    first_for_rest: bool = field(default=False, metadata=LATER)
    image_token: int = field(default=-1, metadata=LATER)

    def own_output(self) -> Value:
        return Value(self.weight.K)
