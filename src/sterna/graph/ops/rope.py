"""Queries, keys and values on their way to attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32, Attention, Heads
from sterna.graph.ops.base import Op, Value

__all__ = ["RopeOp"]


@dataclass(eq=False, kw_only=True)
class RopeOp(Op):
    """Normalises and rotates q and k of a row [q | k | v], and stores k and v in the cache.

    layer: the layer of the cache. q_norm, k_norm, v_norm: weights of RMSNorms, of each head or of
    all of them; norms_last: the norms follow the rotation. gated: the gate of each head of q
    follows that head. stores: False for a row of q. keys_are_values: the row is [q | k].
    """

    kind: ClassVar[str] = "rope"
    x: Value
    layer: int
    heads: Heads
    attention: Attention
    q_norm: F32 | None = None
    k_norm: F32 | None = None
    v_norm: F32 | None = None
    eps: float = 0.0
    norms_last: bool = False
    gated: bool = False
    stores: bool = True
    keys_are_values: bool = False

    def own_output(self) -> Value:
        r = self.heads
        stored = r.stored * r.n_kv_heads if self.stores else 0
        return Value((r.n_heads + stored) * r.padded_head)

    @property
    def reused(self) -> Value | None:
        return None if self.gated else self.x

    @property
    def in_place(self) -> bool:
        return not self.gated and self.output.width == self.x.width
