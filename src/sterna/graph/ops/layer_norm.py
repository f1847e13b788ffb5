"""LayerNorm."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import LATER, RoundingOp, Value

__all__ = ["LayerNormOp"]


@dataclass(eq=False, kw_only=True)
class LayerNormOp(RoundingOp):
    """(x - mean) / sqrt(variance + eps) * weight (+ bias)."""

    kind: ClassVar[str] = "layer_norm"
    x: Value
    weight: F32
    bias: F32 | None = None
    eps: float
    rounding: int | None = field(default=None, metadata=LATER)

    @property
    def is_norm(self) -> bool:
        return True
