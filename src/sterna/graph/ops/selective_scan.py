"""Mamba's selective scan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["SelectiveScanOp"]


@dataclass(eq=False, kw_only=True)
class SelectiveScanOp(Op):
    """Mamba's selective scan of the channels of x, with a step of each; rate: [values of a state,
    channels]. The other fields are as `GraphBuilder.selective_scan` takes them."""

    kind: ClassVar[str] = "selective_scan"
    x: Value
    step: Value
    k: Value
    q: Value
    k_column: int
    q_column: int
    rate: F32
    skip: F32
