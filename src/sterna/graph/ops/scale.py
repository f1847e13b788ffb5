"""Columns times factors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.heads import F32
from sterna.graph.ops.base import InPlaceOp

__all__ = ["ScaleOp"]


@dataclass(eq=False, kw_only=True)
class ScaleOp(InPlaceOp):
    """Each column of x times a factor of its own, in place."""

    kind: ClassVar[str] = "scale"
    factors: F32
