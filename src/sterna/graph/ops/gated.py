"""Heads times their gates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, RecurrentHeads
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["GatedOp"]


@dataclass(eq=False, kw_only=True)
class GatedOp(Op):
    """norm(x) act(gate) of each head: RMSNorm with a weight [features of a head], or one for all
    heads [width of x], or x itself.

    heads: those of x, by `gate_heads`. column: where the gate of the first head begins in `gates`;
    stride: from one head's gate to the next. activation: "silu" or "sigmoid". single: the features
    of a head share one gate. first: the gate comes first, norm(x act(gate)).
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
