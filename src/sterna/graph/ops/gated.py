"""Heads times their gates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, RecurrentHeads
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["GatedOp"]


@dataclass(eq=False, kw_only=True)
class GatedOp(Op):
    """norm(x) act(gate) of each head, or norm(x act(gate)).

    The fields are as `GraphBuilder.gated` takes them.
    """

    kind: ClassVar[str] = "gated"
    x: Value
    gates: Value
    heads: RecurrentHeads
    column: int
    stride: int
    activation: str
    norm: F32 | None = None
    eps: float = 0.0
    single: bool = False
    first: bool = field(default=False, metadata=LATER)
