"""The choice of the positions that a token attends to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import Heads
from sterna.graph.ops.base import Op, Value

__all__ = ["IndexerOp"]


@dataclass(eq=False, kw_only=True)
class IndexerOp(Op):
    """Chooses the positions with the largest scores, as many as the output has columns.

    The score of a position is sum_h weight[h] * relu(q[h] . k) of a token's rotated queries x and
    the keys in `layer` of the cache. weights: a column for each head from `column` on. The output
    has positions as numbers, in ascending order; of equal scores the lowest positions are kept.
    Rows of tokens that see no more positions than this are undefined.
    """

    kind: ClassVar[str] = "indexer"
    x: Value
    weights: Value
    column: int
    layer: int
    heads: Heads
