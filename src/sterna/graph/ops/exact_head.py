"""The exact head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.formats import PackedWeight, Shadow
from sterna.graph.ops.linear import LinearOp

__all__ = ["ExactHeadOp"]


@dataclass(eq=False, kw_only=True)
class ExactHeadOp(LinearOp):
    """A float head, screened by an int8 shadow of its weight in steps where few logits decide."""

    kind: ClassVar[str] = "exact_head"
    screen: Shadow

    @property
    def streamed(self) -> PackedWeight:
        return self.screen.rows

    @property
    def shadow(self) -> Shadow:
        return self.screen
