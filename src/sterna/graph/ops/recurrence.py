"""The gated delta rule, and state spaces."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, RecurrentHeads
from sterna.graph.ops.base import LATER, Op, Value

__all__ = ["RecurrenceOp", "StateSpaceOp"]


@dataclass(eq=False, kw_only=True)
class RecurrenceOp(Op):
    """The gated delta rule over a row [q | k | v], with gates at the columns `a` and `b`.

    rate, bias: of each value head's decay, or of each row of its state. strength: of beta.
    """

    kind: ClassVar[str] = "recurrence"
    x: Value
    heads: RecurrentHeads
    a: int
    b: int
    rate: F32
    bias: F32
    strength: float = field(default=1.0, metadata=LATER)


@dataclass(eq=False, kw_only=True)
class StateSpaceOp(Op):
    """A state space (Mamba-2) over the columns [v | k | q] from `column` on, with a step of each
    value head from the column `step` on; `least` and `most` bound a step's size."""

    kind: ClassVar[str] = "state_space"
    x: Value
    heads: RecurrentHeads
    column: int
    step: int
    rate: F32
    bias: F32
    skip: F32
    least: float
    most: float
