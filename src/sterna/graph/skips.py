"""Weights that a step of one token need not read, since they would meet zeros."""

from __future__ import annotations

from collections.abc import Sequence

from sterna import _native
from sterna.graph.operations import Op, Value

__all__ = ["read_as_floats", "skips"]


def skips(ops: Sequence[Op]) -> dict[Op, int]:
    """The layers around a relu2 that may leave out what meets a zero (native/linear/active.h).

    [gate | up] comes with the number of its rows that are gates: `up` needs no row whose gate
    is closed. What reads the product comes with 0: it needs no column whose activation is 0.
    """
    gate_rows: dict[Op, int] = {}
    floats = read_as_floats(ops)
    for product in (op for op in ops if op.glu == "relu2"):
        x = product.inputs[0]
        makers = [op for op in ops if op.output is x]
        readers = [op for op in ops if x in op.inputs]
        # The sign of a zero product may differ, which a reader of floats would see.
        alone = len(makers) == len(readers) == 1 and product.output not in floats
        if alone and _has_copies(makers[0]):
            weight = makers[0].weight
            assert weight is not None
            whole = product.up % weight.format.tile_rows == 0
            if whole and 2 * product.up == weight.M:
                gate_rows[makers[0]] = product.up
        for op in ops:
            if product.output in op.inputs and op.kind == "linear" and _has_copies(op):
                gate_rows[op] = 0
    return gate_rows


def read_as_floats(ops: Sequence[Op]) -> set[Value]:
    """The values that are read as floats: the others exist only as int8."""
    floats: set[Value] = set()
    for op in ops:
        integer = op.kind == "linear" and op.weight and op.weight.format.integer
        floats.update(x for x in op.inputs if x is op.residual or not integer)
    floats.add(ops[-1].output)
    return floats


def _has_copies(op: Op) -> bool:
    """Whether the core can copy a layer's weight so that single rows and columns are read."""
    if op.kind != "linear" or op.weight is None or op.bias is not None or op.selected:
        return False
    if op.factor != 1 or op.cap or op.route:
        return False
    format = op.weight.format
    return format.layout.name in _native.two_bit_layouts and not format.scales.group
