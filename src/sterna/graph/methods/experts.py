"""Methods that choose experts for tokens, and lead rows to them and back."""

from __future__ import annotations

from dataclasses import replace

from sterna.graph.heads import F32, SOFTMAX, Scoring
from sterna.graph.methods.base import Methods
from sterna.graph.ops import CombineOp, Route, RouteOp, RowwiseOp, Value

__all__ = ["ExpertMethods"]


class ExpertMethods(Methods):
    """Methods that choose experts for tokens, and lead rows to them and back."""

    def route(
        self, logits: Value, experts: int, chosen: int, name: str, of_all: bool = False,
        factors: F32 | None = None, scoring: Scoring = SOFTMAX,
    ) -> Route:  # fmt: skip
        """Choose experts for each token: those with the largest scores, the first among equals.

        logits: the first `experts` columns of a row. Shares are the scores divided by the sum of
        the chosen ones, or with of_all the scores as they are, so that those of the chosen experts
        do not add up to 1. factors: float32 [experts], by which the shares of each expert are then
        multiplied.
        """
        shares = self._add(
            RouteOp(
                name=name, output=Value(chosen), x=logits, experts=experts, chosen=chosen,
                of_all=of_all, factors=factors, scoring=scoring,
            )
        )  # fmt: skip
        return self._follow(Route(shares, experts, chosen))

    def spread(self, x: Value, route: Route, name: str, shared: bool = False) -> Value:
        """Copy each token's row to each of its experts; what follows runs on these rows, up to
        `combine`.

        shared: it is multiplied by the expert's share here, and not in `combine`. Combine the rows
        of one route before the next one begins.
        """
        if route is not self.current:
            raise ValueError(f"{name}: a row must go to the experts of the last route")
        shares = route.shares if shared else None
        if shared:
            route = self._follow(replace(route, shares=None))
        out = Value(x.width, x.starts, route=route)
        return self._add(RowwiseOp(name=name, output=out, x=x, spread=True, shares=shares))

    def combine(self, x: Value, residual: Value | None, name: str) -> Value:
        """Sum a token's rows of experts (and the residual), each times its share.

        The order is that of the experts.
        """
        route = x.route
        if route is None:
            raise ValueError(f"{name}: must combine rows of experts, but got rows of tokens")
        out = Value(x.width)
        return self._add(
            CombineOp(name=name, output=out, x=x, shares=route.shares, residual=residual)
        )
