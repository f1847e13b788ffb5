"""The RG-LRU of Griffin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import Op, Value

__all__ = ["RgLruOp"]


@dataclass(eq=False, kw_only=True)
class RgLruOp(Op):
    """The RG-LRU of Griffin for each channel of x.

    gates: [i | r], two of each channel. With a = exp(-8 softplus(decay) sigmoid(r)), the state of
    a channel, which is the output, is h <- a h + sqrt(1 - a^2) sigmoid(i) x; that of a text's
    first token is sigmoid(i) x. decay: float32 [channels].
    """

    kind: ClassVar[str] = "rg_lru"
    x: Value
    gates: Value
    decay: F32
