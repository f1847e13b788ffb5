"""How integer layers round what they read: to int8, or to two planes of it.

With two, what the first plane's rounding leaves is rounded again, in steps of a 254th: 15 bits and
a sign. The second plane is one more row for the same kernels, whose result is added to the first's.
"""

from __future__ import annotations

from collections.abc import Sequence

from sterna.graph.ops import Op, RowwiseOp, Value

__all__ = ["ACTIVATIONS", "in_two_planes"]

#: What `LLM(activations=)` may be, the default first.
ACTIVATIONS = ("int8", "int8x2")


def in_two_planes(ops: Sequence[Op], activations: str) -> set[Value]:
    """Return the values that are rounded to two planes of int8, not to one."""
    if activations != "int8x2":
        return set()
    return {op.output for op in ops if isinstance(op, RowwiseOp) and op.rounding is not None}
