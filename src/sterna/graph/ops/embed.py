"""Rows of the embedding's table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import WeightOp

__all__ = ["EmbedOp"]


@dataclass(eq=False, kw_only=True)
class EmbedOp(WeightOp):
    """Rows of a table [vocab, width] for the batch's tokens, times the factor."""

    kind: ClassVar[str] = "embed"
    factor: float = 1.0
