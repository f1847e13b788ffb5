"""Methods that multiply by matrices: linear layers, adapters and the head."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from sterna.formats import Experts, PackedWeight, Shadow
from sterna.graph.heads import F32, ROW_BLOCK
from sterna.graph.methods.base import Methods
from sterna.graph.ops import (
    AdaptedLayer,
    AdaptOp,
    ExactHeadOp,
    ExpertLinearOp,
    LinearOp,
    RoundingOp,
    RowwiseOp,
    Value,
)

__all__ = ["LinearMethods"]


class LinearMethods(Methods):
    """Methods that multiply by matrices: linear layers, adapters and the head."""

    def linear(
        self,
        x: Value | Sequence[Value],
        weight: PackedWeight | Experts | Sequence[PackedWeight | Experts],
        name: str,
        residual: Value | None = None,
        bias: F32 | None = None,
        factor: float = 1.0,
    ) -> Value:
        """x W^T (+ residual) (+ bias), in this order; quantises x first for an integer format.

        factor: where it is not 1, (x W^T (+ bias)) * factor (+ residual).

        weight: one, or several, without a residual, whose rows follow each other in the result and
        which may round x differently: each begins at the next multiple of 16 (`Value.starts`).
        x: for all, or one for each of several. After `spread`, each row is multiplied by its own
        expert's weights.
        bias: float32 [rows of all], of experts [experts, rows of all].
        """
        weights = [weight] if isinstance(weight, PackedWeight | Experts) else list(weight)
        rows = [w.M for w in weights]
        if residual is not None and len(weights) > 1:
            raise ValueError(f"{name}: a residual needs one weight, but got {len(weights)}")
        *starts, _ = accumulate((-(-m // ROW_BLOCK) * ROW_BLOCK for m in rows), initial=0)
        out = Value(starts[-1] + rows[-1], tuple(starts))
        biases = [None] * len(weights) if bias is None else _pieces(bias, rows)
        inputs_of = [x] * len(weights) if isinstance(x, Value) else list(x)
        rounded: dict[tuple[int, int | None], Value] = {}
        for row, w, start, b in zip(inputs_of, weights, starts, biases, strict=True):
            key = id(row), w.format.rounding
            if key not in rounded:
                rounded[key] = self._rounded(row, key[1], name)
            if isinstance(w, Experts):
                op: LinearOp = ExpertLinearOp(
                    name=name, output=out, x=rounded[key], weight=w.weight, residual=residual,
                    column=start, bias=b, factor=factor, expert_rows=w.M,
                )  # fmt: skip
            else:
                op = LinearOp(
                    name=name, output=out, x=rounded[key], weight=w, residual=residual,
                    column=start, bias=b, factor=factor,
                )  # fmt: skip
            self._add(op)
        return out

    def adapted(self, x: Value, parts: Sequence[AdaptedLayer], factor: float = 1.0) -> None:
        """Let adapters add to the linear layers that the last call of `linear` added, which read
        x."""
        op = self.graph.ops[-1]
        if not isinstance(op, LinearOp) or isinstance(op, ExpertLinearOp):
            raise ValueError(f"{op.name}: must be linear layers of tokens, but got {op.kind}")
        self._add(AdaptOp(name=op.name, output=op.output, x=x, parts=tuple(parts), factor=factor))

    def without_adapters(self, prefix: str) -> None:
        """Remove the places for adapters of layers whose names begin with `prefix`."""
        self.graph.ops = [
            op
            for op in self.graph.ops
            if not isinstance(op, AdaptOp) or not op.parts[0].name.startswith(prefix)
        ]

    def _rounded(self, x: Value, rounding: int | None, name: str) -> Value:
        """Return x, or a copy of it, with codes of this rounding; x itself if it is None."""
        if rounding is None:
            return x
        made = x.op
        if not isinstance(made, RoundingOp) or not made.rounds_as(rounding):
            made = RowwiseOp(name=name, output=Value(x.width), x=x)
            self._add(made)
        made.rounding = rounding
        return made.output

    def head(
        self, x: Value, table: PackedWeight, shadow: Shadow | None, name: str, cap: float = 0.0,
        bias: F32 | None = None,
    ) -> Value:  # fmt: skip
        """Compute the logits x W^T (+ bias).

        shadow: of a float table; it screens the logits in steps that want a top k. cap: logits
        become cap * tanh(logit / cap). Such logits, and those with a bias, are not screened:
        rounding may make the largest logits equal, and the float head could then choose another of
        them.
        """
        out = Value(table.M)
        if shadow is None or cap or bias is not None:
            x = self._rounded(x, table.format.rounding, name)
            return self._add(LinearOp(name=name, output=out, x=x, weight=table, cap=cap, bias=bias))
        return self._add(ExactHeadOp(name=name, output=out, x=x, weight=table, screen=shadow))


def _pieces(values: F32, sizes: list[int]) -> list[F32]:
    """Split values into consecutive pieces of these sizes; of experts [experts, all] by column."""
    if values.ndim not in (1, 2) or values.shape[-1] != sum(sizes):
        raise ValueError(f"bias: must have {sum(sizes)} values, but got shape {values.shape}")
    pieces = np.split(values, list(accumulate(sizes[:-1])), axis=-1)
    return [np.ascontiguousarray(piece).reshape(-1) for piece in pieces]
