"""Operations on a row between two linear layers, in one pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from sterna.graph.heads import F32, Rotation
from sterna.graph.ops.base import LATER, RoundingOp, Value

__all__ = ["RowwiseOp"]


@dataclass(eq=False, kw_only=True)
class RowwiseOp(RoundingOp):
    """(norm(glu(x)), rotated, + residual) * factor, and the same rounded to int8; each part is
    optional.

    glu: an activation as in `GraphBuilder.glu`. What it multiplies begins at `up_column` of `up`,
    or of x if `up` is None; ungated: it multiplies nothing; limit: as in `GraphBuilder.glu`.
    norm: weights of an RMSNorm; parts: the number of parts of a row, each normalised separately.
    inverse: the rotation is undone.
    spread: a token's row is copied to each of its experts; shares: factors of the copies.
    """

    kind: ClassVar[str] = "rowwise"
    x: Value
    up: Value | None = None
    up_column: int = 0
    glu: str = ""
    limit: float = 0.0
    norm: F32 | None = None
    eps: float = 0.0
    parts: int = 1
    rotation: Rotation | None = None
    inverse: bool = False
    residual: Value | None = None
    factor: float = 1.0
    rounding: int | None = None
    spread: bool = False
    shares: Value | None = field(default=None, metadata=LATER)
    ungated: bool = field(default=False, metadata=LATER)

    @property
    def is_norm(self) -> bool:
        return self.norm is not None

    @property
    def is_bare_glu(self) -> bool:
        """Whether a norm can still become part of it."""
        return bool(self.glu) and self.norm is None

    def rounds_as(self, rounding: int) -> bool:
        return super().rounds_as(rounding) and self.residual is None
