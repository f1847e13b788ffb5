"""`Graph`: the words a model file writes its layers in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sterna.errors import UnsupportedModelError
from sterna.formats import Experts, PackedWeight, Shadow
from sterna.graph.heads import F32, ROW_BLOCK, Attention, Heads, RecurrentHeads, Rotation
from sterna.graph.operations import Adapted, Op, Part, Route, Value
from sterna.graph.written import Written

__all__ = ["Graph"]


@dataclass
class Graph(Written):
    """A model being written down."""

    selected: bool = False  # after `select`, only rows whose logits are wanted go on
    current: Route | None = None  # the last route: the rows of experts are its

    def _add(
        self, kind: str, name: str, inputs: list[Value], width: int, output: Value | None = None,
        **more: object,
    ) -> Value:  # fmt: skip
        output = output or Value(width)
        route = inputs[0].route if inputs else None
        if route is not None and route is not self.current:
            raise ValueError(f"{name}: rows of a route must be combined before the next one begins")
        if kind in ("rowwise", "linear") and route is not None:
            more["route"] = output.route = route
        op = Op(kind, name, inputs, output, selected=self.selected, **more)  # type: ignore[arg-type]
        output.op = op
        self.ops.append(op)
        return output

    def embed(self, table: PackedWeight, factor: float = 1.0) -> Value:
        """Rows of the table [vocab, width] for the batch's tokens, times the factor."""
        return self._add("embed", "embed_tokens", [], table.K, weight=table, factor=factor)

    def given(self, width: int) -> Value:
        """A row for each token from outside (`StepInput.previous_hidden_states`)."""
        return self._add("copy", "given", [], width)

    def beside(self, parts: Sequence[Value]) -> Value:
        """The rows of all parts as one, side by side."""
        *starts, width = accumulate((part.width for part in parts), initial=0)
        out = Value(width)
        for part, start in zip(parts, starts, strict=True):
            self._add("copy", "beside", [part], width, out, column=start)
        return out

    def tell(self, x: Value, weight: F32, eps: float, name: str) -> None:
        """Output RMSNorm(x) * weight of every token to the inputs that ask for it
        (`StepInput.return_hidden_states`); computed only if one does."""
        self._add("tell", name, [x], x.width, norm=weight, eps=eps)

    def norm(
        self,
        x: Value,
        weight: F32,
        eps: float,
        name: str,
        residual: Value | None = None,
        factor: float = 1.0,
    ) -> Value:
        """RMSNorm(x) * weight, or (RMSNorm(x) * weight + residual) * factor; without a residual it
        is one pass with the glu that made x, if nothing else follows that.

        A row of n times as many values as the weight has is normalised in n parts.
        """
        op, parts = x.op, x.width // weight.size
        if residual is not None or parts > 1:
            inputs = [x] if residual is None else [x, residual]
            return self._add(
                "rowwise", name, inputs, x.width, norm=weight, eps=eps, residual=residual,
                factor=factor, parts=parts,
            )  # fmt: skip
        if op is not None and op is self.ops[-1] and op.glu and op.norm is None:
            op.name, op.norm, op.eps = name, weight, eps
            return x
        return self._add("rowwise", name, [x], x.width, norm=weight, eps=eps)

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
        (up + 1), of a gate that is at most `limit` and an up within it.

        up: where it stands in another row, from a column on; then the first row is the gate.
        """
        if up is not None:
            row, column = up
            inputs, width = [gate_up, row], gate_up.width
        else:
            column = gate_up.starts[1] if len(gate_up.starts) > 1 else gate_up.width // 2
            inputs, width = [gate_up], gate_up.width - column
        return self._add("rowwise", name, inputs, width, glu=activation, up=column, limit=limit)

    def rotate(self, x: Value, rotation: Rotation, name: str, inverse: bool = False) -> Value:
        """The rotated values, or those that the rotation makes x of; x stays, too."""
        return self._add("rowwise", name, [x], x.width, rotation=rotation, inverse=inverse)

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
        x: for all, or one for each of several. Rows of experts (`spread`) have each the weights of
        its own.
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
            inputs = [rounded[key]] if residual is None else [rounded[key], residual]
            packed, expert_rows = (w.weight, w.M) if isinstance(w, Experts) else (w, 0)
            self._add(
                "linear", name, inputs, out.width, out, weight=packed, residual=residual,
                column=start, bias=b, factor=factor, expert_rows=expert_rows,
            )  # fmt: skip
        return out

    def adapted(self, x: Value, parts: Sequence[Part], factor: float = 1.0) -> None:
        """Lets adapters add to the linear layers that `linear` has just written, which read x."""
        op = self.ops[-1]
        if op.kind != "linear" or op.route is not None:
            raise ValueError(f"{op.name}: must be linear layers of tokens, but got {op.kind}")
        op.adapted = Adapted(x, tuple(parts), factor)

    def without_adapters(self, prefix: str) -> None:
        """Layers whose names begin so have none after all."""
        for op in self.ops:
            if op.adapted is not None and op.adapted.parts[0].name.startswith(prefix):
                op.adapted = None

    def _rounded(self, x: Value, rounding: int | None, name: str) -> Value:
        """x, or a copy of it, that has codes of this rounding; None: floats are read."""
        if rounding is None:
            return x
        made = x.op  # what may round its own result
        if made is None or made.kind != "rowwise" or made.rounding not in (None, rounding) or (
            made.residual is not None
        ):  # fmt: skip
            x = self._add("rowwise", name, [x], x.width)
        assert x.op is not None
        x.op.rounding = rounding
        return x

    def head(
        self, x: Value, table: PackedWeight, shadow: Shadow | None, name: str, cap: float = 0.0
    ) -> Value:
        """The logits x W^T; with a shadow of a float table, screened in steps that want a top k.

        cap: logits become cap * tanh(logit / cap). They are not screened then: rounding may make
        equal what decides, and the float head would choose otherwise among those.
        """
        if shadow is None or cap:
            logits = self.linear(x, table, name)
            self.ops[-1].cap = cap
            return logits
        return self._add("linear", name, [x], table.M, weight=table, shadow=shadow)

    def attention(
        self, qkv: Value, layer: int, how: Attention,
        norms: tuple[F32, ...] = (), eps: float = 0.0, gated: bool = False,
        norms_last: bool = False, heads: Heads | None = None, keys_are_values: bool = False,
        keys_of: Value | None = None,
    ) -> Value:  # fmt: skip
        """Rotates q and k of a row [q | k | v], stores k and v, attends to positions so far.

        layer: of the model, for messages. heads: of this layer, None for the graph's.
        norms: weights [head_dim] of an RMSNorm of each head of q, of k, and of v where there are
        three; before the rotation or, norms_last, after it; or two [heads * head_dim] of one of all
        of q, and of k, before it.
        gated: behind each head of q stand as many values that `Graph.gated` may read.
        keys_are_values: the row is [q | k], whose keys, as they are, are the values as well.
        keys_of: what `attention` gave for an earlier layer, whose keys and values this one reads;
        the row is q alone, and there is one norm at most.
        """
        r = heads or self.heads
        stored = 0 if keys_of is not None else r.n_kv_heads * (1 if keys_are_values else 2)
        if qkv.width != (r.n_heads * (1 + gated) + stored) * r.head_dim:
            raise UnsupportedModelError(
                f"layer {layer}: where q, k and v are in several formats, head_dim must be a "
                f"multiple of {ROW_BLOCK}, but got {r.head_dim}; give them one --format"
            )
        cached, stores = len(self.kv_heads), keys_of is None
        if keys_of is not None:
            assert keys_of.op is not None
            cached = keys_of.op.layer
        q_norm, k_norm, v_norm = (*norms, None, None, None)[:3]
        width = (r.n_heads + (2 * r.n_kv_heads if stores else 0)) * r.padded_head
        rotated = self._add(
            "rope", f"model.layers.{layer}.self_attn", [qkv], width, layer=cached, attention=how,
            norm=q_norm, k_norm=k_norm, v_norm=v_norm, eps=eps, gated=gated, norms_last=norms_last,
            heads=r, stores=stores, keys_are_values=keys_are_values,
        )  # fmt: skip
        width = r.n_heads * r.head_dim
        return self._add(
            "attention", "attention", [rotated], width, layer=cached, attention=how, heads=r
        )

    def conv(self, x: Value, weight: F32, name: str) -> Value:
        """A causal convolution of each of the first channels of x by itself, then SiLU.

        weight: float32 [channels, width], the last for the token itself. The other columns stay.
        """
        taps = np.ascontiguousarray(weight.T)
        return self._add("conv", name, [x], x.width, Value(x.width, x.starts), taps=taps)

    def recurrence(
        self, x: Value, heads: RecurrentHeads, a: int, b: int, rate: F32, bias: F32, name: str
    ) -> Value:
        """The gated delta rule over a row that begins [q | k | v], and has both gates of each value
        head from the columns `a` and `b` on: float32 [v_heads * v_dim].

        With q and k of unit length, q over the root of k_dim, decay = exp(rate softplus(a + bias))
        and beta = sigmoid(b), each head's state is S <- decay S + k (beta (v - decay S^T k))^T, and
        the result S^T q. rate, bias: float32 [v_heads]. x is spent.
        """
        return self._add(
            "recurrence", name, [x], heads.v_width, recurrent=heads, a=a, b=b, rate=rate, bias=bias
        )

    def gated(
        self, x: Value, gates: Value, column: int, stride: int, heads: int, activation: str,
        name: str, norm: F32 | None = None, eps: float = 0.0, k_heads: int | None = None,
        single: bool = False,
    ) -> Value:  # fmt: skip
        """norm(x) act(gate) of each head: RMSNorm with a weight [features of a head], or x itself.

        column, stride: where the first head's gate begins in the other row, and how far it is from
        there to the next. activation: "silu" or "sigmoid". k_heads: where given, heads are tiled
        (`RecurrentHeads`) in both rows, and stand by their key heads in the result. single: a
        head's features share one gate.
        """
        each = RecurrentHeads(k_heads or heads, heads, 1, x.width // heads, tiled=True)
        return self._add(
            "gated", name, [x, gates], x.width, recurrent=each, column=column, stride=stride,
            activation=activation, norm=norm, eps=eps, single=single,
        )  # fmt: skip

    def route(
        self, logits: Value, experts: int, chosen: int, name: str, of_all: bool = False,
        factors: F32 | None = None,
    ) -> Route:  # fmt: skip
        """The experts of each token: those of its largest logits, of equal ones the first.

        logits: the first `experts` columns of a row. Shares are the softmax of those that were
        chosen; of_all: of all, so that the shares of the chosen ones do not add up to 1. factors:
        float32 [experts], which an expert's shares are then multiplied with.
        """
        shares = self._add("route", name, [logits], chosen, of_all=of_all, factors=factors)
        route = Route(shares, experts, chosen)
        self.ops[-1].route = self.current = route
        return route

    def spread(self, x: Value, route: Route, name: str) -> Value:
        """A row of each token for each of its experts; what follows runs on these, to `combine`.

        One route at a time: another begins where the rows of this one have been combined.
        """
        if route is not self.current:
            raise ValueError(f"{name}: a row must go to the experts of the last route")
        out = Value(x.width, x.starts, route=route)
        return self._add("rowwise", name, [x], x.width, out, route=route, spread=True)

    def combine(self, x: Value, residual: Value | None, name: str) -> Value:
        """(residual +) the sum of what the experts of a token made of it, each times its share, in
        the order of the experts."""
        route = x.route
        if route is None:
            raise ValueError(f"{name}: must combine rows of experts, but got rows of tokens")
        inputs = [x, route.shares, *([] if residual is None else [residual])]
        return self._add("combine", name, inputs, x.width, residual=residual, route=route)

    def select(self, x: Value) -> Value:
        """The rows of x whose logits are wanted; all that follows runs on them alone."""
        self.selected = True
        return self._add("select", "select", [x], x.width)


def _pieces(values: F32, sizes: list[int]) -> list[F32]:
    """Consecutive pieces of these sizes; where experts have some, those of a piece together."""
    if values.ndim not in (1, 2) or values.shape[-1] != sum(sizes):
        raise ValueError(f"bias: must have {sum(sizes)} values, but got shape {values.shape}")
    pieces = np.split(values, list(accumulate(sizes[:-1])), axis=-1)
    return [np.ascontiguousarray(piece).reshape(-1) for piece in pieces]
