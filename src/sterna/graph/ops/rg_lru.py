"""The RG-LRU of Griffin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["RgLruOp"]


@dataclass(eq=False, kw_only=True)
class RgLruOp(Op):
    """The RG-LRU of the channels of x, with two gates of each: [input | recurrence]."""

    kind: ClassVar[str] = "rg_lru"
    x: Value
    gates: Value
    decay: F32
