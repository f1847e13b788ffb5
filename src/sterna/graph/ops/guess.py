"""A guess of the experts that the next layer will choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.route import RouteOp

__all__ = ["GuessOp"]


@dataclass(eq=False, kw_only=True)
class GuessOp(RouteOp):
    """Chooses experts as the next `RouteOp` will, but by other logits, and tells the cache of
    weights on disk which they are. Its output is x itself."""

    kind: ClassVar[str] = "guess"
