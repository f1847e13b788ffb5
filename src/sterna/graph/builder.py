"""`GraphBuilder`: adds operations to a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np

from sterna.errors import UnsupportedModelError
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.graph.graph import Graph
from sterna.graph.heads import F32, ROW_BLOCK, SOFTMAX, Attention, Heads, Piece, Rotary, Scoring
from sterna.graph.ops import (
    ActivationOp,
    AdaptedLayer,
    AdaptOp,
    AttentionOp,
    CombineOp,
    CopyOp,
    ExactHeadOp,
    ExpertLinearOp,
    IndexerOp,
    LinearOp,
    Op,
    RopeOp,
    RoundingOp,
    Route,
    RouteOp,
    RowwiseOp,
    SelectOp,
    Value,
)

__all__ = ["GLUS", "GraphBuilder"]

#: Activations of a rowwise operation, by their names in config.json.
GLUS = ("relu2", "silu", "gelu", "gelu_pytorch_tanh")


@dataclass
class GraphBuilder:
    """Adds operations to `graph`. Methods return what an operation makes, for others to read.

    `add` adds any operation of `graph.ops`; the other methods choose an operation, or several, or
    how these fuse. heads: the attention heads of layers that set none. one_layer: all layers write
    their keys and values to the same layer of the cache, as those of an encoder may that computes
    its rows whole.
    """

    heads: Heads
    one_layer: bool = False
    graph: Graph = field(init=False)
    selected: bool = False  # `select` was called: only rows whose logits are wanted follow
    current: Route | None = None  # the last route, whose experts the rows of experts are for

    def __post_init__(self) -> None:
        """Begin an empty graph."""
        self.graph = Graph(self.heads)

    def add(self, op: Op) -> Value:
        """Add an operation; return its output."""
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

    def select(self, x: Value, mean: bool = False) -> Value:
        """Go on with the rows of x whose logits are wanted; all that follows runs only on them.

        mean: with the mean of its sequence's new rows in the place of each.
        """
        self.selected = True
        return self.add(SelectOp(name="select", x=x, mean=mean))

    def concatenate(self, parts: Sequence[Value]) -> Value:
        """Put the columns of all parts into one row."""
        *starts, width = accumulate((part.width for part in parts), initial=0)
        out = Value(width)
        for part, start in zip(parts, starts, strict=True):
            self.add(CopyOp(name="concatenate", output=out, x=part, column=start))
        return out

    def columns(self, x: Value, width: int, name: str, begin: int = 0) -> Value:
        """Copy some columns of x, from `begin` on, to a row of their own."""
        return self.place(width, [(x, Piece(width, begin=begin))], name)

    def place(self, width: int, pieces: Sequence[tuple[Value, Piece]], name: str) -> Value:
        """Put columns of several values into one row of this width, as each `Piece` says."""
        out = Value(width)
        for x, piece in pieces:
            self._copy(x, piece, out, name)
        return out

    def head_rows(self, x: Value, piece: Piece, name: str) -> Value:
        """Put each piece of x into a row of its own, of one of `count` heads.

        `linear` then multiplies it by the head's own matrix, one of `Experts`; `place` puts rows of
        heads back into one. They end the rows of a route.
        """
        self.current = Route(None, piece.count, piece.count)
        out = Value(piece.width, route=self.current)
        self._copy(x, piece, out, name)
        # A rowwise operation rounds rows, or makes planes of them, for what follows.
        return self.add(RowwiseOp(name=name, x=out))

    def _copy(self, x: Value, piece: Piece, out: Value, name: str) -> None:
        copy = CopyOp(
            name=name,
            output=out,
            x=x,
            column=piece.column,
            pieces=piece.count,
            width=piece.width,
            begin=piece.begin,
            stride=piece.stride,
            to_stride=piece.to_stride,
        )
        self.add(copy)

    def norm(
        self,
        x: Value,
        weight: F32,
        eps: float,
        name: str,
        residual: Value | None = None,
        factor: float = 1.0,
    ) -> Value:
        """RMSNorm(x) * weight, or (RMSNorm(x) * weight + residual) * factor; without a residual,
        the norm is fused into the glu that made x, if that glu is the last operation.

        A row of n times as many values as the weight has is normalised in n parts.
        """
        op = RowwiseOp(name=name, x=x, norm=weight, eps=eps, parts=x.width // weight.size)
        if residual is not None or op.parts > 1:
            op.residual, op.factor = residual, factor
        elif x.op is self.graph.ops[-1] and isinstance(x.op, RowwiseOp) and x.op.is_bare_glu:
            x.op.name, x.op.norm, x.op.eps = name, weight, eps
            return x
        return self.add(op)

    def activation(
        self, x: Value, activation: str, name: str, parameters: tuple[float, ...] = ()
    ) -> Value:
        """act(x): one of `GLUS`, "relu", "quick_gelu", "tanh", "clip" or "xielu".

        parameters: "clip" has the least and the most value, "xielu" alpha_p, alpha_n, beta and
        eps. Rows of experts have one of `GLUS`.
        """
        if x.route is not None or (activation in GLUS and not parameters):
            return self.add(RowwiseOp(name=name, x=x, glu=activation, ungated=True))
        return self.add(ActivationOp(name=name, x=x, activation=activation, parameters=parameters))

    def glu(
        self,
        gate_up: Value,
        activation: str,
        name: str,
        limit: float = 0.0,
        up: tuple[Value, int] | None = None,
    ) -> Value:
        """act(gate) * up of a row [gate | up]; activation: one of `GLUS`, or "clamped": gate
        sigmoid(1.702 gate) (up + 1).

        limit: the gate is at most the limit, and up within it; 0: no limit. "clamped" needs one,
        "silu" may have one.
        up: a value and the column where up begins in it; then `gate_up` is the gate.
        """
        row, column = up or (None, 0)
        width = gate_up.width
        if row is None:
            column = gate_up.starts[1] if len(gate_up.starts) > 1 else width // 2
            width -= column
        op = RowwiseOp(name=name, output=Value(width), x=gate_up, glu=activation, limit=limit)
        op.up, op.up_column = row, column
        return self.add(op)

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
            fields: dict[str, Any] = {"name": name, "output": out, "x": rounded[key]}
            fields |= {"residual": residual, "column": start, "bias": b, "factor": factor}
            if isinstance(w, Experts):
                self.add(ExpertLinearOp(**fields, weight=w.weight, expert_rows=w.M))
            else:
                self.add(LinearOp(**fields, weight=w))
        return out

    def adapted(self, x: Value, parts: Sequence[AdaptedLayer], factor: float = 1.0) -> None:
        """Let adapters add to the linear layers that the last call of `linear` added, which read
        x."""
        op = self.graph.ops[-1]
        if not isinstance(op, LinearOp) or isinstance(op, ExpertLinearOp):
            raise ValueError(f"{op.name}: must be linear layers of tokens, but got {op.kind}")
        self.add(AdaptOp(name=op.name, output=op.output, x=x, parts=tuple(parts), factor=factor))

    def _rounded(self, x: Value, rounding: int | None, name: str) -> Value:
        """Return x, or a copy of it, with codes of this rounding; x itself if it is None."""
        if rounding is None:
            return x
        made = x.op
        if not isinstance(made, RoundingOp) or not made.rounds_as(rounding):
            made = RowwiseOp(name=name, x=x)
            self.add(made)
        made.rounding = rounding
        return made.output

    def head(
        self,
        x: Value,
        table: PackedWeight,
        shadow: Shadow | None,
        name: str,
        cap: float = 0.0,
        bias: F32 | None = None,
    ) -> Value:
        """Compute the logits x W^T (+ bias).

        shadow: the int8 shadow of a float table, which screens the logits in steps that want a
        top k. cap: logits become cap * tanh(logit / cap). Such logits, and those with a bias, are
        not screened: rounding may make the largest logits equal, and the float head could then
        choose another of them.
        """
        if shadow is None or cap or bias is not None:
            x = self._rounded(x, table.format.rounding, name)
            return self.add(LinearOp(name=name, x=x, weight=table, cap=cap, bias=bias))
        return self.add(ExactHeadOp(name=name, x=x, weight=table, screen=shadow))

    def attention(
        self,
        qkv: Value,
        layer: int,
        how: Attention,
        norms: tuple[F32, ...] = (),
        eps: float = 0.0,
        *,
        gated: bool = False,
        norms_last: bool = False,
        heads: Heads | None = None,
        keys_are_values: bool = False,
        keys_of: Value | None = None,
        chosen: Value | None = None,
    ) -> Value:
        """Rotate q and k of a row [q | k | v], store k and v, and attend to the positions so far.

        layer: the model's number of the layer, for messages. heads: the heads of this layer; None:
        the graph's.
        norms: weights of RMSNorms of q, k and (if there are three) v. Of size head_dim they
        normalise each head, before the rotation or with norms_last after it. Two of size
        heads * head_dim normalise all of q and all of k, before it.
        gated: each head of q is followed by as many values, which a `GatedOp` may read.
        keys_are_values: the row is [q | k]; the keys, before norms and rotation, are the values.
        keys_of: what `attention` returned for an earlier layer, whose keys and values this one
        reads; the row is q, with at most one norm.
        chosen: the positions that a token attends to, from `indexer`; None: all.
        """
        r = heads or self.heads
        stored = 0 if keys_of is not None else r.n_kv_heads * (1 if keys_are_values else r.stored)
        if qkv.width != (r.n_heads * (1 + gated) + stored) * r.head_dim:
            raise UnsupportedModelError(
                f"layer {layer}: where q, k and v are in several formats, head_dim must be a "
                f"multiple of {ROW_BLOCK}, but got {r.head_dim}; give them one --format"
            )
        cached = 0 if self.one_layer else len(self.graph.kv_heads)
        if keys_of is not None:
            assert isinstance(keys_of.op, AttentionOp)
            cached = keys_of.op.layer
        q_norm, k_norm, v_norm = (*norms, None, None, None)[:3]
        rope = RopeOp(
            name=f"model.layers.{layer}.self_attn",
            x=qkv,
            layer=cached,
            heads=r,
            attention=how,
            q_norm=q_norm,
            k_norm=k_norm,
            v_norm=v_norm,
            eps=eps,
            norms_last=norms_last,
            gated=gated,
            stores=keys_of is None,
            keys_are_values=keys_are_values,
        )
        rotated = self.add(rope)
        attended = AttentionOp(name="attention", x=rotated, layer=cached, heads=r, attention=how)
        attended.chosen = chosen
        return self.add(attended)

    def indexer(
        self,
        x: Value,
        weights: Value,
        column: int,
        rotary: Rotary,
        heads: Heads,
        top_k: int,
        layer: int,
    ) -> Value:
        """Choose the `top_k` positions that a token of a layer attends to, for `attention`.

        x: rows [q | k] of all heads and one key, which are rotated; k is stored in a layer of the
        cache of its own. weights: a column for each head from `column` on; the score of a position
        is sum_h weight[h] * relu(q[h] . k). layer: the model's number of the layer, for messages.
        """
        name, cached = f"model.layers.{layer}.self_attn.indexer", len(self.graph.kv_heads)
        rope = RopeOp(name=name, x=x, layer=cached, heads=heads, attention=Attention(rotary))
        indexer = IndexerOp(
            name=name,
            output=Value(top_k),
            x=self.add(rope),
            weights=weights,
            column=column,
            layer=cached,
            heads=heads,
        )
        return self.add(indexer)

    def route(
        self,
        logits: Value,
        experts: int,
        chosen: int,
        name: str,
        of_all: bool = False,
        factors: F32 | None = None,
        scoring: Scoring = SOFTMAX,
    ) -> Route:
        """Choose experts for each token: those with the largest scores, the first among equals.

        logits: the first `experts` columns of a row. Shares are the scores divided by the sum of
        the chosen ones, or with of_all the scores as they are, so that those of the chosen experts
        do not add up to 1. factors: float32 [experts], by which the shares of each expert are then
        multiplied.
        """
        op = RouteOp(name=name, x=logits, experts=experts, chosen=chosen, of_all=of_all)
        op.factors, op.scoring = factors, scoring
        self.current = Route(self.add(op), experts, chosen)
        return self.current

    def spread(self, x: Value, route: Route, name: str, shared: bool = False) -> Value:
        """Copy each token's row to each of its experts; what follows runs on these rows, up to
        `combine`.

        shared: the copy is multiplied by the expert's share here, and not in `combine`. Combine the
        rows of one route before the next one begins.
        """
        if route is not self.current:
            raise ValueError(f"{name}: a row must go to the experts of the last route")
        shares = route.shares if shared else None
        if shared:
            route = self.current = replace(route, shares=None)
        out = Value(x.width, x.starts, route=route)
        return self.add(RowwiseOp(name=name, output=out, x=x, spread=True, shares=shares))

    def combine(self, x: Value, residual: Value | None, name: str) -> Value:
        """Sum a token's rows of experts (and the residual), each times its share.

        The order is that of the experts.
        """
        if x.route is None:
            raise ValueError(f"{name}: must combine rows of experts, but got rows of tokens")
        return self.add(CombineOp(name=name, x=x, shares=x.route.shares, residual=residual))


def _pieces(values: F32, sizes: list[int]) -> list[F32]:
    """Split values into consecutive pieces of these sizes; of experts [experts, all] by column."""
    if values.ndim not in (1, 2) or values.shape[-1] != sum(sizes):
        raise ValueError(f"bias: must have {sum(sizes)} values, but got shape {values.shape}")
    pieces = np.split(values, list(accumulate(sizes[:-1])), axis=-1)
    return [np.ascontiguousarray(piece).reshape(-1) for piece in pieces]
