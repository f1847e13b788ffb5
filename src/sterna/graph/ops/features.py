"""Features of an image, added to the rows of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["FeaturesOp"]


@dataclass(eq=False, kw_only=True)
class FeaturesOp(Op):
    """x + the columns of a token's image features from `column` on; x where a token has none.

    `EmbedOp` puts the first columns, as many as the table is wide, in the places of tokens.
    """

    kind: ClassVar[str] = "features"
    x: Value
    column: int

    @property
    def reused(self) -> Value:
        return self.x
