"""Hidden states for a caller that asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["HiddenStatesOp"]


@dataclass(eq=False, kw_only=True)
class HiddenStatesOp(Op):
    """RMSNorm(x) * norm of every token; it costs nothing in steps that do not ask for it."""

    kind: ClassVar[str] = "hidden_states"
    x: Value
    norm: F32
    eps: float
