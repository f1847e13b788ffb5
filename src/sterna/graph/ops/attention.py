"""Attention to the positions so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import Attention, Heads
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["AttentionOp"]


@dataclass(eq=False, kw_only=True)
class AttentionOp(Op):
    """The attention of a row's queries to a layer of the cache.

    chosen: the positions that each token attends to, as `IndexerOp` writes them; None: all.
    """

    kind: ClassVar[str] = "attention"
    x: Value
    layer: int
    heads: Heads
    attention: Attention
    chosen: Value | None = field(default=None, metadata=LATER)

    def own_output(self) -> Value:
        return Value(self.heads.n_heads * self.heads.outputs)
