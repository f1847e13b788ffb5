"""What the methods of a builder share: the graph that they add to, and what was added last."""

from __future__ import annotations

from dataclasses import dataclass, field

from sterna.graph.graph import Graph
from sterna.graph.heads import Heads
from sterna.graph.ops import AdaptOp, LinearOp, Op, Route, RowwiseOp, Value

__all__ = ["Methods"]


@dataclass
class Methods:
    """What the methods of a builder share: the graph that they add to, and what was added last."""

    heads: Heads  # of layers that name no others
    one_layer: bool = False
    graph: Graph = field(init=False)
    selected: bool = False  # `select` was called: only rows whose logits are wanted follow
    current: Route | None = None  # the last route, whose experts the rows of experts are for

    def __post_init__(self) -> None:
        """Begin an empty graph."""
        self.graph = Graph(self.heads)

    def _follow(self, route: Route) -> Route:
        """Make this the last route, and return it."""
        self.current = route
        return route

    def _add(self, op: Op) -> Value:
        inputs = op.inputs
        route = inputs[0].route if inputs else None
        if route is not None and route is not self.current:
            raise ValueError(
                f"{op.name}: rows of a route must be combined before the next one begins"
            )
        if isinstance(op, RowwiseOp | LinearOp) and route is not None:
            op.output.route = route
        op.selected = self.selected
        if op.output not in inputs and not isinstance(op, AdaptOp):
            op.output.op = op
        self.graph.ops.append(op)
        return op.output
