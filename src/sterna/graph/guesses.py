"""Guesses of the experts that the next layer will choose, so that they are read from disk early.

A layer changes the residual stream only a little. So the next layer's norm and router, applied to
the stream that this layer's router reads, name many of the experts that they will choose later
(Eliseev and Mazur 2023, arXiv 2312.17238).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from sterna.graph.ops import GuessOp, LinearOp, Op, RouteOp, RowwiseOp, Value

__all__ = ["with_guesses"]


@dataclass(frozen=True)
class _Router:
    """A router: norm and linear layer, which lead from the residual stream to its logits."""

    norm: RowwiseOp
    linear: LinearOp
    route: RouteOp


def with_guesses(ops: Sequence[Op]) -> list[Op]:
    """Return the operations with a guess of the next router's choice after each router.

    Routers whose logits come from the residual stream another way get none.
    """
    routers = _routers(ops)
    before, after = defaultdict[Op, list[Op]](list), defaultdict[Op, list[Op]](list)
    for one, following in pairwise(routers):
        if one is None or following is None or one.norm.x.width != following.norm.x.width:
            continue
        x = one.norm.x
        norm = replace(following.norm, x=x, output=Value(x.width))
        width = following.linear.output.width
        linear = replace(following.linear, x=norm.output, output=Value(width))
        # Here, since the norm may be the last to read that row.
        before[one.norm] += [norm, linear]
        route = following.route
        of_route = {f.name: getattr(route, f.name) for f in fields(GuessOp)}
        logits = {"x": linear.output, "output": linear.output}
        after[one.route].append(GuessOp(**of_route | logits))
    return [one for op in ops for one in (*before[op], op, *after[op])]


def _routers(ops: Sequence[Op]) -> list[_Router | None]:
    """List the routers in their order; None: one of another form."""
    makers = defaultdict[Value, list[Op]](list)
    for op in ops:
        makers[op.output].append(op)
    routers: list[_Router | None] = []
    for route in (op for op in ops if isinstance(op, RouteOp)):
        linear = makers[route.x][0]
        norm = makers[linear.x][0] if isinstance(linear, LinearOp) else None
        simple = (
            isinstance(linear, LinearOp)
            and linear.residual is None
            and linear.column == 0
            and route.experts <= linear.weight.M
            and isinstance(norm, RowwiseOp)
            and norm.is_norm
            and norm.inputs == [norm.x]
            and norm.x.route is None
        )
        if simple:
            assert isinstance(linear, LinearOp)
            assert isinstance(norm, RowwiseOp)
            routers.append(_Router(norm, linear, route))
        else:
            routers.append(None)
    return routers
