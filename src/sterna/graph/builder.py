"""`GraphBuilder`: the methods by which a model file adds its layers to a graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

import numpy as np

from sterna.errors import UnsupportedModelError
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.graph.graph import Graph
from sterna.graph.heads import (
    F32,
    ROW_BLOCK,
    SOFTMAX,
    Attention,
    Heads,
    Piece,
    RecurrentHeads,
    Rotation,
    Scoring,
)
from sterna.graph.ops import (
    ActivationOp,
    AdaptedLayer,
    AdaptOp,
    AltUpOp,
    AttentionOp,
    CombineOp,
    ConvOp,
    CopyOp,
    CutoffOp,
    EmbedOp,
    ExactHeadOp,
    ExpertLinearOp,
    FeaturesOp,
    GatedOp,
    HiddenStatesOp,
    LayerNormOp,
    LinearOp,
    Op,
    PartsOp,
    PositionsOp,
    RecurrenceOp,
    RescaleOp,
    RopeOp,
    Route,
    RouteOp,
    RowwiseOp,
    ScaleOp,
    SelectOp,
    ShortConvOp,
    SplitHeadsOp,
    StateSpaceOp,
    Value,
)

__all__ = ["GraphBuilder"]


@dataclass
class GraphBuilder:
    """Adds operations to `graph`. Methods return what an operation makes, for others to read.

    one_layer: all layers write their keys and values to the same layer of the cache, as those of an
    encoder may that computes its rows whole.
    """

    heads: Heads  # of layers that name no others
    one_layer: bool = False
    graph: Graph = field(init=False)
    selected: bool = False  # `select` was called: only rows whose logits are wanted follow
    current: Route | None = None  # the last route, whose experts the rows of experts are for

    def __post_init__(self) -> None:
        """Begin an empty graph."""
        self.graph = Graph(self.heads)

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

    def embed(
        self, table: PackedWeight, factor: float = 1.0, first_for_rest: bool = False
    ) -> Value:
        """Look up rows of the table [vocab, width] for the batch's tokens, times the factor.

        first_for_rest: the table may be shorter; tokens behind its last row take its first.
        """
        return self._add(
            EmbedOp(
                name="embed_tokens", output=Value(table.K), weight=table, factor=factor,
                first_for_rest=first_for_rest,
            )
        )  # fmt: skip

    def previous_hidden_states(self, width: int) -> Value:
        """Add a row for each token from outside (`StepInput.previous_hidden_states`)."""
        return self._add(CopyOp(name="previous_hidden_states", output=Value(width), x=None))

    def concatenate(self, parts: Sequence[Value]) -> Value:
        """Put the columns of all parts into one row."""
        *starts, width = accumulate((part.width for part in parts), initial=0)
        out = Value(width)
        for part, start in zip(parts, starts, strict=True):
            self._add(CopyOp(name="concatenate", output=out, x=part, column=start))
        return out

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
        rows = Value(piece.width, route=self.current)
        return self._add(RowwiseOp(name=name, output=rows, x=out))

    def _copy(self, x: Value, piece: Piece, out: Value, name: str) -> None:
        self._add(
            CopyOp(
                name=name, output=out, x=x, column=piece.column, pieces=piece.count,
                width=piece.width, begin=piece.begin, stride=piece.stride,
                to_stride=piece.to_stride,
            )
        )  # fmt: skip

    def hidden_states(self, x: Value, weight: F32, eps: float, name: str) -> None:
        """Output RMSNorm(x) * weight of every token to the inputs that ask for it
        (`StepInput.return_hidden_states`); computed only if one does."""
        self._add(HiddenStatesOp(name=name, output=Value(x.width), x=x, norm=weight, eps=eps))

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
        made, parts = x.op, x.width // weight.size
        plain, last = residual is None and parts == 1, self.graph.ops[-1]
        if plain and made is last and isinstance(made, RowwiseOp) and made.is_bare_glu:
            made.name, made.norm, made.eps = name, weight, eps
            return x
        return self._add(
            RowwiseOp(
                name=name, output=Value(x.width), x=x, norm=weight, eps=eps, parts=parts,
                residual=residual, factor=1.0 if plain else factor,
            )
        )  # fmt: skip

    def layer_norm(self, x: Value, weight: F32, bias: F32 | None, eps: float, name: str) -> Value:
        """LayerNorm(x) * weight (+ bias)."""
        out = Value(x.width)
        return self._add(LayerNormOp(name=name, output=out, x=x, weight=weight, bias=bias, eps=eps))

    def activation(
        self, x: Value, activation: str, name: str, parameters: tuple[float, ...] = ()
    ) -> Value:
        """act(x): "relu", "relu2", "silu", "gelu", "gelu_pytorch_tanh", "quick_gelu" or "tanh".

        parameters: of "clip" a limit; of "xielu" alpha_p, alpha_n, beta and eps. Rows of experts
        have one of the words of `glu`.
        """
        out = Value(x.width)
        if x.route is not None:
            return self._add(RowwiseOp(name=name, output=out, x=x, glu=activation, ungated=True))
        return self._add(
            ActivationOp(name=name, output=out, x=x, activation=activation, parameters=parameters)
        )

    def positions(self, x: Value, table: F32, name: str, first: int = 0) -> Value:
        """x + the table's row of each token's position; first: the row of position 0."""
        out = Value(x.width)
        return self._add(PositionsOp(name=name, output=out, x=x, table=table, first=first))

    def features(self, x: Value, column: int, name: str) -> Value:
        """Add an image's features to the rows of its tokens, those from a column on.

        `embed` puts the first ones, as many as the table is wide, in the places of tokens.
        """
        return self._add(FeaturesOp(name=name, output=Value(x.width), x=x, column=column))

    def parts(self, x: Value, table: F32, name: str) -> Value:
        """x + row 0 of the table, or row 1 in the second part of a pair (`StepInput.second_part`).

        table: float32 [1 or more, width].
        """
        return self._add(PartsOp(name=name, output=Value(x.width), x=x, table=table))

    def glu(
        self,
        gate_up: Value,
        activation: str,
        name: str,
        limit: float = 0.0,
        up: tuple[Value, int] | None = None,
    ) -> Value:
        """act(gate) * up of a row [gate | up]; activation: "relu2", "silu", "gelu" or
        "gelu_pytorch_tanh", in the words of config.json; or "clamped": gate sigmoid(1.702 gate)
        (up + 1).

        limit: of a clamped one, and of silu unless it is 0: the gate is at most that, up within it.

        up: where it stands in another row, from a column on; then the first row is the gate.
        """
        row, column = up or (None, 0)
        width = gate_up.width
        if row is None:
            column = gate_up.starts[1] if len(gate_up.starts) > 1 else width // 2
            width -= column
        return self._add(
            RowwiseOp(
                name=name, output=Value(width), x=gate_up, up=row, up_column=column,
                glu=activation, limit=limit,
            )
        )  # fmt: skip

    def rotate(self, x: Value, rotation: Rotation, name: str, inverse: bool = False) -> Value:
        """Rotate x, or with `inverse` undo the rotation; x itself is unchanged."""
        out = Value(x.width)
        return self._add(RowwiseOp(name=name, output=out, x=x, rotation=rotation, inverse=inverse))

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
        if not isinstance(made, RowwiseOp) or not made.rounds_as(rounding):
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

    def attention(
        self, qkv: Value, layer: int, how: Attention,
        norms: tuple[F32, ...] = (), eps: float = 0.0, gated: bool = False,
        norms_last: bool = False, heads: Heads | None = None, keys_are_values: bool = False,
        keys_of: Value | None = None,
    ) -> Value:  # fmt: skip
        """Rotate q and k of a row [q | k | v], store k and v, and attend to the positions so far.

        layer: of the model, for messages. heads: of this layer; None: the graph's.
        norms: weights of RMSNorms of q, k and (if there are three) v. Of size head_dim they
        normalise each head, before the rotation or with norms_last after it. Two of size
        heads * head_dim normalise all of q and all of k, before it.
        gated: each head of q is followed by as many values, which `gated` may read.
        keys_are_values: the row is [q | k]; the keys, before norms and rotation, are the values.
        keys_of: what `attention` returned for an earlier layer, whose keys and values this one
        reads; the row is q alone, with at most one norm.
        """
        r = heads or self.heads
        stored = 0 if keys_of is not None else r.n_kv_heads * (1 if keys_are_values else r.stored)
        if qkv.width != (r.n_heads * (1 + gated) + stored) * r.head_dim:
            raise UnsupportedModelError(
                f"layer {layer}: where q, k and v are in several formats, head_dim must be a "
                f"multiple of {ROW_BLOCK}, but got {r.head_dim}; give them one --format"
            )
        cached = 0 if self.one_layer else len(self.graph.kv_heads)
        stores = keys_of is None
        if keys_of is not None:
            assert isinstance(keys_of.op, AttentionOp)
            cached = keys_of.op.layer
        q_norm, k_norm, v_norm = (*norms, None, None, None)[:3]
        width = (r.n_heads + (r.stored * r.n_kv_heads if stores else 0)) * r.padded_head
        rotated = self._add(
            RopeOp(
                name=f"model.layers.{layer}.self_attn", output=Value(width), x=qkv, layer=cached,
                heads=r, attention=how, q_norm=q_norm, k_norm=k_norm, v_norm=v_norm, eps=eps,
                norms_last=norms_last, gated=gated, stores=stores,
                keys_are_values=keys_are_values,
            )
        )  # fmt: skip
        return self._add(
            AttentionOp(
                name="attention", output=Value(r.n_heads * r.outputs), x=rotated, layer=cached,
                heads=r, attention=how,
            )
        )  # fmt: skip

    def split_heads(self, x: Value, n_heads: int, parts: int, name: str, first: int = 1) -> Value:
        """Reorder columns [q | k | v] of each head in turn to [q of all | k of all | v of all].

        parts: how many parts a head has. first: so many queries come in one head, before its k.
        """
        out = Value(x.width)
        return self._add(
            SplitHeadsOp(name=name, output=out, x=x, n_heads=n_heads, parts=parts, first=first)
        )

    def altup(
        self, x: Value, factors: Value, streams: int, active: int, name: str,
        made: Value | None = None,
    ) -> Value:  # fmt: skip
        """Mix the streams of a row (AltUp): each plus the sum of all of them times its factors.

        factors: [streams, streams], a stream's side by side. made: what a layer made of the stream
        `active`; then a stream is itself plus (1 + its factor) times what the layer changed, and
        factors are [streams].
        """
        out = Value(x.width)
        return self._add(
            AltUpOp(
                name=name, output=out, x=x, made=made, factors=factors, streams=streams,
                active=active,
            )
        )  # fmt: skip

    def rescale(
        self, x: Value, size_of: Value, name: str, *, column: int = 0, least: float = 1e-5,
        residual: Value | None = None,
    ) -> Value:  # fmt: skip
        """x * rms(size_of) / rms(x) (+ residual), of as many columns as size_of has, from `column`.

        least: the mean square that x is at least taken to have.
        """
        out = Value(size_of.width)
        return self._add(
            RescaleOp(
                name=name, output=out, x=x, size_of=size_of, column=column, least=least,
                residual=residual,
            )
        )  # fmt: skip

    def cutoff(self, x: Value, width: int, deviations: float, name: str) -> Value:
        """max(0, x - (mean + deviations * standard deviation)) of the first `width` columns of x.

        Read the result and not x afterwards.
        """
        out = Value(x.width, x.starts)
        return self._add(CutoffOp(name=name, output=out, x=x, width=width, deviations=deviations))

    def scale(self, x: Value, factors: F32, name: str) -> Value:
        """Multiply each column of x by its factor, float32 [width of x].

        Read the result and not x afterwards.
        """
        out = Value(x.width, x.starts)
        return self._add(ScaleOp(name=name, output=out, x=x, factors=factors))

    def conv(
        self, x: Value, weight: F32, name: str, bias: F32 | None = None, column: int = 0
    ) -> Value:
        """Convolve channels of x causally, each by itself, then apply SiLU.

        weight: float32 [channels, width]; the last column is for the token itself. bias: float32
        [channels]. column: of x, where the channels begin; other columns stay as they are. Read the
        result and not x afterwards.
        """
        taps = np.ascontiguousarray(weight.T)
        out = Value(x.width, x.starts)
        return self._add(ConvOp(name=name, output=out, x=x, taps=taps, bias=bias, column=column))

    def short_conv(self, x: Value, weight: F32, bias: F32 | None, name: str) -> Value:
        """Write after * (conv(before * x) (+ bias)) of a row [before | after | x]; the convolution
        is causal, of each channel by itself.

        weight: float32 [channels, width]; the last column is for the token itself. bias: float32
        [channels].
        """
        taps = np.ascontiguousarray(weight.T)
        out = Value(len(weight))
        return self._add(ShortConvOp(name=name, output=out, x=x, taps=taps, bias=bias))

    def recurrence(
        self, x: Value, heads: RecurrentHeads, a: int, b: int, rate: F32, bias: F32, name: str,
        strength: float = 1.0,
    ) -> Value:  # fmt: skip
        """Apply the gated delta rule; the result is float32 [v_heads * v_dim].

        A row begins [q | k | v], and has the two gates of each value head from the columns `a` and
        `b` on. q and k get unit length, and q is divided by the root of k_dim. With
        decay = exp(rate softplus(a + bias)) and beta = strength sigmoid(b), each head's state is
        S <- decay S + k (beta (v - (decay S)^T k))^T, and the result is S^T q. rate, bias: float32
        [v_heads]. Where they are [v_heads * k_dim], a has as many columns, and each row of a state
        decays by itself. Do not read x afterwards.
        """
        return self._add(
            RecurrenceOp(
                name=name, output=Value(heads.v_width), x=x, heads=heads, a=a, b=b, rate=rate,
                bias=bias, strength=strength,
            )
        )  # fmt: skip

    def state_space(
        self, x: Value, heads: RecurrentHeads, column: int, step: int, rate: F32, bias: F32,
        skip: F32, name: str, limits: tuple[float, float] = (0.0, float("inf")),
    ) -> Value:  # fmt: skip
        """Apply a state space (Mamba-2); the result is float32 [v_heads * v_dim].

        A row has [v | k | q] from `column` on (in the paper's words x, B and C), and a step of each
        value head from the column `step` on. With h = softplus(step + bias), kept within `limits`,
        each head's state is S <- exp(rate h) S + k (h v)^T, and the result is S^T q + skip v. rate,
        bias, skip: float32 [v_heads].
        """
        out, (least, most) = Value(heads.v_width), limits
        return self._add(
            StateSpaceOp(
                name=name, output=out, x=x, heads=heads, column=column, step=step, rate=rate,
                bias=bias, skip=skip, least=least, most=most,
            )
        )  # fmt: skip

    def gated(
        self, x: Value, gates: Value, column: int, stride: int, heads: int, activation: str,
        name: str, norm: F32 | None = None, eps: float = 0.0, k_heads: int | None = None,
        single: bool = False, first: bool = False,
    ) -> Value:  # fmt: skip
        """norm(x) act(gate) of each head: RMSNorm with a weight [features of a head], or one for
        all heads [width of x], or x itself.

        column: where the gate of the first head begins in `gates`; stride: from one head's gate to
        the next. activation: "silu" or "sigmoid". k_heads: if set, heads are tiled
        (`RecurrentHeads`) in both rows, and ordered by their key heads in the result. single: the
        features of a head share one gate. first: the gate comes first, norm(x act(gate)).
        """
        each = RecurrentHeads(k_heads or heads, heads, 1, x.width // heads, tiled=True)
        return self._add(
            GatedOp(
                name=name, output=Value(x.width), x=x, gates=gates, heads=each, column=column,
                stride=stride, activation=activation, norm=norm, eps=eps, single=single,
                first=first,
            )
        )  # fmt: skip

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
        self.current = Route(shares, experts, chosen)
        return self.current

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
            self.current = route = replace(route, shares=None)
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

    def select(self, x: Value, mean: bool = False) -> Value:
        """Go on with the rows of x whose logits are wanted; all that follows runs only on them.

        mean: with the mean of its sequence's new rows in the place of each.
        """
        self.selected = True
        return self._add(SelectOp(name="select", output=Value(x.width), x=x, mean=mean))


def _pieces(values: F32, sizes: list[int]) -> list[F32]:
    """Split values into consecutive pieces of these sizes; of experts [experts, all] by column."""
    if values.ndim not in (1, 2) or values.shape[-1] != sum(sizes):
        raise ValueError(f"bias: must have {sum(sizes)} values, but got shape {values.shape}")
    pieces = np.split(values, list(accumulate(sizes[:-1])), axis=-1)
    return [np.ascontiguousarray(piece).reshape(-1) for piece in pieces]
