"""Planes of bf16 for layers that multiply them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna.graph.ops.base import Op, Value

__all__ = ["ToBf16PlanesOp"]


@dataclass(eq=False, kw_only=True)
class ToBf16PlanesOp(Op):
    """Makes planes of bf16 of a value that no rowwise operation has made; its output is x itself.

    Compilation adds it.
    """

    kind: ClassVar[str] = "to_bf16_planes"
    x: Value
