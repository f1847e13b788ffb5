"""The gated delta rule, and state spaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, RecurrentHeads
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["RecurrenceOp", "StateSpaceOp"]


@dataclass(eq=False, kw_only=True)
class RecurrenceOp(Op):
    """The gated delta rule; the output is float32 [v_heads * v_dim]. x is not read afterwards.

    A row begins [q | k | v], and has the two gates of each value head from the columns `a` and
    `b` on. q and k get unit length, and q is divided by the root of k_dim. With
    decay = exp(rate softplus(a + bias)) and beta = strength sigmoid(b), each head's state is
    S <- decay S + k (beta (v - (decay S)^T k))^T, and the output is S^T q. rate, bias: float32
    [v_heads]. Where they are [v_heads * k_dim], a has as many columns, and each row of a state
    decays by itself.
    """

    kind: ClassVar[str] = "recurrence"
    x: Value
    heads: RecurrentHeads
    a: int
    b: int
    rate: F32
    bias: F32
    strength: float = field(default=1.0, metadata=LATER)

    def own_output(self) -> Value:
        return Value(self.heads.v_width)


@dataclass(eq=False, kw_only=True)
class StateSpaceOp(Op):
    """A state space (Mamba-2); the output is float32 [v_heads * v_dim].

    A row has [v | k | q] from `column` on (in the paper's words x, B and C), and a step of each
    value head from the column `step` on. With h = softplus(step + bias), clipped to `least` and
    `most`, each head's state is S <- exp(rate h) S + k (h v)^T, and the output is S^T q + skip v.
    rate, bias, skip: float32 [v_heads].
    """

    kind: ClassVar[str] = "state_space"
    x: Value
    heads: RecurrentHeads
    column: int
    step: int
    rate: F32
    bias: F32
    skip: F32
    least: float = 0.0
    most: float = float("inf")

    def own_output(self) -> Value:
        return Value(self.heads.v_width)
