"""Weights that a step of one token need not read, since they would meet zeros."""

from __future__ import annotations

from collections.abc import Sequence

from sterna.graph.ops import LinearOp, Op, RowwiseOp, Value

__all__ = ["read_as_floats", "skips"]


def skips(ops: Sequence[Op]) -> dict[Op, int]:
    """Find layers around a relu2 that may leave out what meets a zero (native/linear/active.h).

    [gate | up] comes with the number of its rows that are gates: `up` needs no row whose gate is
    closed. The layer that reads the product needs no column whose activation is 0.
    """
    gate_rows: dict[Op, int] = {}
    floats = read_as_floats(ops)
    for product in (op for op in ops if isinstance(op, RowwiseOp) and op.glu == "relu2"):
        makers = [op for op in ops if op.output is product.x and isinstance(op, LinearOp)]
        readers = [op for op in ops if product.x in op.inputs]
        # The sign of a zero product may differ, which would change layers that read floats.
        only_pair = len(makers) == len(readers) == 1 and product.output not in floats
        if only_pair and makers[0].may_skip:
            weight = makers[0].weight
            whole = product.up_column % weight.format.tile_rows == 0
            if whole and 2 * product.up_column == weight.M:
                gate_rows[makers[0]] = product.up_column
        for op in ops:
            if isinstance(op, LinearOp) and op.x is product.output and op.may_skip:
                gate_rows[op] = 0
    return gate_rows


def read_as_floats(ops: Sequence[Op]) -> set[Value]:
    """Return the values that are read as floats: the others exist only as int8."""
    floats = {x for op in ops for x in op.float_inputs}
    floats.add(ops[-1].output)
    return floats
