"""Mamba's selective scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["SelectiveScanOp"]


@dataclass(eq=False, kw_only=True)
class SelectiveScanOp(Op):
    """Mamba's selective scan; the output is as wide as x.

    Each channel of x has a state S of n values and a step of its own. All channels of a token
    share k and q, n columns of a value from `k_column` or `q_column` on (in the paper's words B
    and C). With h = softplus(step), S <- exp(rate h) S + k h x, and the output is S^T q + skip x.
    rate: float32 [n, channels]; skip: float32 [channels].
    """

    kind: ClassVar[str] = "selective_scan"
    x: Value
    step: Value
    k: Value
    q: Value
    k_column: int = 0
    q_column: int = 0
    rate: F32
    skip: F32
