"""A threshold of each row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import InPlaceOp

__all__ = ["CutoffOp"]


@dataclass(eq=False, kw_only=True)
class CutoffOp(InPlaceOp):
    """max(0, x - (mean + deviations * standard deviation)) of the first `width` columns, in place.

    The mean and the standard deviation are those of these columns.
    """

    kind: ClassVar[str] = "cutoff"
    width: int
    deviations: float
