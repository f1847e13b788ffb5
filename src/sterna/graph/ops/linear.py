"""Linear layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sterna import _native
from sterna.formats import PackedWeight, Shadow
from sterna.graph.heads import F32
from sterna.graph.ops.base import Value, WeightOp

__all__ = ["LinearOp"]


@dataclass(eq=False, kw_only=True)
class LinearOp(WeightOp):
    """x W^T (+ residual) (+ bias); if the factor is not 1, (x W^T (+ bias)) * factor (+ residual).

    column: where the result begins in the output. cap: the result becomes cap tanh(result / cap);
    0: it stays.
    """

    kind: ClassVar[str] = "linear"
    x: Value
    residual: Value | None = None
    column: int = 0
    bias: F32 | None = None
    factor: float = 1.0
    cap: float = 0.0
    # Set in compilation (skips.py): the first rows are gates, and a step of one token reads only
    # the rows behind open ones; or it reads only the columns whose activation is not 0.
    open_rows: int = 0
    active_columns: bool = False

    def own_output(self) -> Value:
        return Value(self.weight.M)

    @property
    def float_inputs(self) -> list[Value]:
        if not self.weight.format.integer:
            return self.inputs
        return [] if self.residual is None else [self.residual]

    @property
    def reused(self) -> Value | None:
        return self.residual if self.factor == 1 else None

    @property
    def one_weight(self) -> PackedWeight:
        """What one call of a kernel reads: the weight, or an expert's part."""
        return self.weight

    @property
    def streamed(self) -> PackedWeight:
        """The weight that a step reads whole; an exact head's shadow."""
        return self.weight

    @property
    def shadow(self) -> Shadow | None:
        """The screen of its weight, which only an exact head has."""
        return None

    @property
    def may_skip(self) -> bool:
        """Whether the core can copy its weight so that single rows and columns are read."""
        plain = self.bias is None and not self.selected and self.factor == 1 and not self.cap
        format = self.weight.format
        return plain and format.layout.name in _native.two_bit_layouts and not format.scales.group
