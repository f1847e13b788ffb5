"""Attention to the positions so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import Attention, Heads
from sterna.graph.ops.base import Op, Value

__all__ = ["AttentionOp"]


@dataclass(eq=False, kw_only=True)
class AttentionOp(Op):
    """The attention of a row's queries to a layer of the cache."""

    kind: ClassVar[str] = "attention"
    x: Value
    layer: int
    heads: Heads
    attention: Attention

    def own_output(self) -> Value:
        return Value(self.heads.n_heads * self.heads.outputs)
