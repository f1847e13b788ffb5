"""How integer layers round their inputs: to one or two planes of int8.

With two planes, the remainder of the first plane's rounding is rounded again, in steps of a 254th:
15 bits and a sign. The second plane is a further row for the same kernels, and its result is added
to the first's.
"""

from __future__ import annotations

from collections.abc import Sequence

from sterna.graph.ops import Op, RoundingOp, Value

__all__ = ["ACTIVATIONS", "in_two_planes", "rounded_values"]

#: Values of `LLM(activations=)`, the default first.
ACTIVATIONS = ("int8", "int8x2")


def rounded_values(ops: Sequence[Op]) -> set[Value]:
    """Return the values that are rounded to int8."""
    return {op.output for op in ops if isinstance(op, RoundingOp) and op.rounding is not None}


def in_two_planes(ops: Sequence[Op], activations: str) -> set[Value]:
    """Return the values that are rounded to two planes of int8, not to one."""
    return rounded_values(ops) if activations == "int8x2" else set()
