"""The words a model file writes its layers in, and their translation to a native Program.

A model's `build` calls the methods of a `Graph` once; each returns a `Value`, a row of activations
per token. `compile` then decides which values are quantised (those an integer layer reads), which
share a buffer (those never alive together), and emits the flat list of operations that the native
runner plays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.errors import UnsupportedModelError
from sterna.formats import Experts, PackedWeight, Shadow

__all__ = ["Attention", "Graph", "Heads", "RecurrentHeads", "Rotary", "Rotation", "Route", "Value"]

F32 = npt.NDArray[np.float32]
PAD = 64  # widths of buffers are padded to it (native kPad)
ROW_BLOCK = 16  # columns are written, and heads padded, in multiples of it (native kRowBlock)


@dataclass(frozen=True)
class Rotary:
    """A rotary embedding of the first 2 * len(inverse_frequencies) values of each head.

    interleaved: it rotates values 2i and 2i + 1 together, else i and i + len(inverse_frequencies).
    factor: of cosines and sines. long: the frequencies of an engine whose sequences may have more
    than `short_context` positions, where they are others. They cannot depend on how long a sequence
    is at the moment: keys that are in the cache would have to be rotated again.
    """

    inverse_frequencies: tuple[float, ...]
    interleaved: bool = False
    factor: float = 1.0
    long: tuple[float, ...] = ()
    short_context: int = 0

    def of_context(self, context: int) -> tuple[float, ...]:
        """The inverse frequencies of sequences of up to `context` positions."""
        return self.long if self.long and context > self.short_context else self.inverse_frequencies


@dataclass(frozen=True)
class Attention:
    """How a layer attends.

    rotary: of its queries and keys, None where it has none.
    window: a position sees so many of the last positions, itself included; None: all.
    scale: of scores, None for head_dim^-1/2. cap: scores become cap * tanh(score / cap); 0: none.
    sinks: for each query head one more score, as it is, of a position without a value: it takes its
    share of the weights, and adds nothing; (): none.
    """

    rotary: Rotary | None
    window: int | None = None
    scale: float | None = None
    cap: float = 0.0
    sinks: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Rotation:
    """x -> H(signs * x) / sqrt(block) in blocks of x, H the Hadamard matrix of a power of two.

    Weights that were multiplied by its inverse give the same products with what it makes of their
    inputs, whose outliers it spreads. signs: float32 [width] of 1 and -1, None: all 1.
    """

    block: int
    signs: F32 | None = None


@dataclass(frozen=True)
class Heads:
    """The heads of all layers, as the KV cache has them."""

    n_heads: int
    n_kv_heads: int
    head_dim: int

    @property
    def padded_head(self) -> int:
        """head_dim as the attention kernels and the KV cache want it: a multiple of 16."""
        return -(-self.head_dim // ROW_BLOCK) * ROW_BLOCK


@dataclass(frozen=True)
class RecurrentHeads:
    """The heads of a recurrent layer, whose rows are [q | k | v].

    Value head i has the queries and keys of head i // (v_heads / k_heads), or where they are tiled,
    as GGUF files have them, of head i % k_heads.
    """

    k_heads: int
    v_heads: int
    k_dim: int
    v_dim: int
    tiled: bool = False

    @property
    def v_width(self) -> int:
        """Features of all value heads."""
        return self.v_heads * self.v_dim

    @property
    def width(self) -> int:
        """Features of a row [q | k | v]."""
        return 2 * self.k_heads * self.k_dim + self.v_width


@dataclass(frozen=True, eq=False)
class Route:
    """Which of `experts` each token goes to, `chosen` of them, and in `shares` how much of each."""

    shares: Value
    experts: int
    chosen: int


@dataclass(eq=False)
class Value:
    """Activations: float32 [tokens, width], and int8 beside them if an integer layer reads them.

    starts: the columns where the results of several weights begin (`Graph.linear`), else (0,).
    route: where it is not None there is a row for each token and each of its experts.
    """

    width: int
    starts: tuple[int, ...] = (0,)
    op: _Op | None = field(default=None, repr=False)  # whose own values would be printed as well
    route: Route | None = field(default=None, repr=False)


@dataclass(eq=False)
class _Op:
    kind: str
    name: str
    inputs: list[Value]
    output: Value
    weight: PackedWeight | None = None
    shadow: Shadow | None = None
    residual: Value | None = None
    column: int = 0  # of a linear layer's output, where this weight's rows go
    bias: F32 | None = None
    norm: F32 | None = None
    k_norm: F32 | None = None  # rope: `norm` is q's
    eps: float = 0.0
    glu: str = ""
    up: int = 0  # the column where a glu's second half begins
    limit: float = 0.0  # of a clamped glu
    rotation: Rotation | None = None  # rowwise
    inverse: bool = False  # of the rotation
    rounding: int | None = None  # to int8, for integer layers: Format.rounding
    selected: bool = False
    layer: int = 0
    attention: Attention | None = None  # rope, attention
    gated: bool = False  # rope: gates of the heads of q stand between these
    norms_last: bool = False  # rope: after the rotation
    recurrent: RecurrentHeads | None = None  # recurrence; gated: its value heads
    a: int = 0  # recurrence: the columns of both gates
    b: int = 0
    taps: F32 | None = None  # conv [width, channels]
    rate: F32 | None = None  # recurrence, beside `bias`
    stride: int = 0  # gated: from a gate, the first of them at `column`, to the next
    activation: str = ""
    single: bool = False  # gated: a head has one gate
    factor: float = 1.0  # embed, linear: of the result, before a residual is added
    cap: float = 0.0  # linear: as `Attention.cap`, of the result
    route: Route | None = None  # route; of what runs on rows of experts or reads them
    expert_rows: int = 0  # linear: of the weight of each expert
    spread: bool = False  # rowwise: a row of a token goes to each of its experts
    of_all: bool = False  # route: shares add up to 1 over all experts

    @property
    def one_weight(self) -> PackedWeight:
        """What one call of a kernel reads: the weight, or an expert's part."""
        assert self.weight is not None
        if self.route is None:
            return self.weight
        return Experts(self.weight, self.route.experts, self.expert_rows)[0]

    @property
    def n_weights(self) -> int:
        """Weights of the matrix, rows that only fill tiles left out."""
        assert self.weight is not None
        rows = self.expert_rows * self.route.experts if self.route else self.weight.M
        return rows * self.weight.K

    @property
    def active(self) -> float:
        """The part of its weight that a token needs: that of its experts."""
        return self.route.chosen / self.route.experts if self.route else 1.0


@dataclass
class Graph:
    """A model being written down."""

    heads: Heads
    ops: list[_Op] = field(default_factory=list)
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
        op = _Op(kind, name, inputs, output, selected=self.selected, **more)  # type: ignore[arg-type]
        output.op = op
        self.ops.append(op)
        return output

    def embed(self, table: PackedWeight, factor: float = 1.0) -> Value:
        """Rows of the table [vocab, width] for the batch's tokens, times the factor."""
        return self._add("embed", "embed_tokens", [], table.K, weight=table, factor=factor)

    def norm(
        self, x: Value, weight: F32, eps: float, name: str, residual: Value | None = None
    ) -> Value:
        """RMSNorm(x) * weight (+ residual); without one it is one pass with the glu that made x,
        if nothing else follows that."""
        op = x.op
        if residual is not None:
            inputs = [x, residual]
            return self._add(
                "rowwise", name, inputs, x.width, norm=weight, eps=eps, residual=residual
            )
        if op is not None and op is self.ops[-1] and op.glu and op.norm is None:
            op.name, op.norm, op.eps = name, weight, eps
            return x
        return self._add("rowwise", name, [x], x.width, norm=weight, eps=eps)

    def glu(self, gate_up: Value, activation: str, name: str, limit: float = 0.0) -> Value:
        """act(gate) * up of a row [gate | up]; activation: "relu2", "silu", "gelu" or
        "gelu_pytorch_tanh", in the words of config.json; or "clamped": gate sigmoid(1.702 gate)
        (up + 1), of a gate that is at most `limit` and an up within it."""
        up = gate_up.starts[1] if len(gate_up.starts) > 1 else gate_up.width // 2
        return self._add(
            "rowwise", name, [gate_up], gate_up.width - up, glu=activation, up=up, limit=limit
        )

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
        norms: tuple[F32, F32] | None = None, eps: float = 0.0, gated: bool = False,
        norms_last: bool = False,
    ) -> Value:  # fmt: skip
        """Rotates q and k of a row [q | k | v], stores k and v, attends to positions so far.

        layer: of the model, for messages.
        norms: weights [head_dim] of an RMSNorm of each head of q, and of k, before the rotation or,
        norms_last, after it; or [heads * head_dim] of one of all of q, and of k, before it.
        gated: behind each head of q stand as many values that `Graph.gated` may read.
        """
        r = self.heads
        heads = r.n_heads + 2 * r.n_kv_heads
        if qkv.width != (heads + r.n_heads * gated) * r.head_dim:
            raise UnsupportedModelError(
                f"layer {layer}: where q, k and v are in several formats, head_dim must be a "
                f"multiple of {ROW_BLOCK}, but got {r.head_dim}; give them one --format"
            )
        q_norm, k_norm = norms or (None, None)
        cached, name = self.attention_layers, f"model.layers.{layer}.self_attn"
        rotated = self._add(
            "rope", name, [qkv], heads * r.padded_head, layer=cached, attention=how,
            norm=q_norm, k_norm=k_norm, eps=eps, gated=gated, norms_last=norms_last,
        )  # fmt: skip
        width = r.n_heads * r.head_dim
        return self._add("attention", "attention", [rotated], width, layer=cached, attention=how)

    @property
    def attention_layers(self) -> int:
        """Layers that keep keys and values."""
        return sum(op.kind == "attention" for op in self.ops)

    @property
    def window(self) -> int | None:
        """The most of the last positions that a layer sees, where all have a window; else None."""
        hows = [op.attention for op in self.ops if op.kind == "attention"]
        seen = [how.window for how in hows if how is not None and how.window is not None]
        return max(seen) if seen and len(seen) == len(hows) else None

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
        self, logits: Value, experts: int, chosen: int, name: str, of_all: bool = False
    ) -> Route:
        """The experts of each token: those of its largest logits, of equal ones the first.

        logits: the first `experts` columns of a row. Shares are the softmax of those that were
        chosen; of_all: of all, so that the shares of the chosen ones do not add up to 1.
        """
        shares = self._add("route", name, [logits], chosen, of_all=of_all)
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

    def without_head(self) -> Graph:
        """The same model up to its last norm: what it makes of the rows that `select` leaves."""
        last = max(i for i, op in enumerate(self.ops) if op.norm is not None)
        return replace(self, ops=self.ops[: last + 1])

    def weights(self) -> list[PackedWeight]:
        """Every packed weight once."""
        seen = {id(op.weight): op.weight for op in self.ops if op.weight is not None}
        return list(seen.values())

    @property
    def can_be_fast(self) -> bool:
        """Whether all layers hold floats of one format, so that bf16 products may sum them."""
        formats = {weight.format for _, weight in self._layers()}
        return len(formats) == 1 and not any(f.integer for f in formats)

    def linear_weights(self) -> list[PackedWeight]:
        """Every packed weight that a linear layer or the head reads, once; of experts the first."""
        linears = [op for op in self.ops if op.kind == "linear" and op.weight is not None]
        return list({id(op.weight): op.one_weight for op in linears}.values())

    def _layers(self) -> list[tuple[Value, PackedWeight]]:
        """What the linear layers read, and their weights; the head, which comes last, left out."""
        linears = [op for op in self.ops[:-1] if op.kind == "linear"]
        return [(op.inputs[0], op.weight) for op in linears if op.weight is not None]

    def compile(
        self,
        fast: bool = False,
        skip_with: int = 0,
        direct_tokens: Mapping[str, int] = MappingProxyType({}),
        context: int = 0,
    ) -> _native.Program:
        """The native program; the last value written is the logits, or that of `without_head`.

        fast: the layers of a model that `can_be_fast` use the unit's bf16 products where it has
        them, for every number of tokens. The head keeps the ascending sums of `ops.linear`: an
        exact head is proven for those, and equals a float head.
        skip_with: so many threads make, for the layers that `skips` names, the copies by which a
        step of one token leaves out weights that meet a zero; 0: none, all weights are read.
        direct_tokens: of a format's name, the most tokens that go straight from the decoder
        (`few_tokens`); the unit's own guess for formats that are left out.
        context: the most positions of a sequence, which `Rotary.long` depends on.

        The graph stays as it is: engines of one model may compile it at the same time.
        """
        program = _native.Program(self.heads.n_heads, self.heads.n_kv_heads, self.heads.head_dim)
        rotaries: dict[Rotary | None, int] = {None: -1}
        for op in self.ops:
            rotary = op.attention.rotary if op.attention else None
            if rotary not in rotaries and rotary is not None:
                rotaries[rotary] = program.rotary(
                    rotary.of_context(context), rotary.interleaved, rotary.factor
                )
        ids = {}
        for w in self.weights():
            native = w.native()
            native.direct_tokens = direct_tokens.get(w.format.name, 0)
            ids[id(w)] = program.weight(native)
        # Values that layers read as planes of bf16, and a weight that does.
        planes_for = dict(self._layers()) if fast and self.can_be_fast else {}
        skips = self.skips() if skip_with else {}
        writer = _Writer(
            program, self._buffers(program), self._read_as_floats(), ids, planes_for, rotaries
        )
        for op in self.ops:
            writer.write(op)
            if op in skips:
                if gates := skips[op]:
                    program.read_open_rows(gates, skip_with)
                else:
                    program.read_columns(skip_with)
        if self.ops[-1].kind == "rowwise":
            program.end_without_head(self.ops[-1].output.width)
        return program

    def skips(self) -> dict[_Op, int]:
        """The layers around a relu2 that may leave out what meets a zero (native/linear/active.h).

        [gate | up] comes with the number of its rows that are gates: `up` needs no row whose gate
        is closed. What reads the product comes with 0: it needs no column whose activation is 0.
        """
        gate_rows: dict[_Op, int] = {}
        floats = self._read_as_floats()
        for product in (op for op in self.ops if op.glu == "relu2"):
            x = product.inputs[0]
            makers = [op for op in self.ops if op.output is x]
            readers = [op for op in self.ops if x in op.inputs]
            # The sign of a zero product may differ, which a reader of floats would see.
            alone = len(makers) == len(readers) == 1 and product.output not in floats
            if alone and _has_copies(makers[0]):
                weight = makers[0].weight
                assert weight is not None
                whole = product.up % weight.format.tile_rows == 0
                if whole and 2 * product.up == weight.M:
                    gate_rows[makers[0]] = product.up
            for op in self.ops:
                if product.output in op.inputs and op.kind == "linear" and _has_copies(op):
                    gate_rows[op] = 0
        return gate_rows

    def _read_as_floats(self) -> set[Value]:
        """The values that are read as floats: the others exist only as int8."""
        floats: set[Value] = set()
        for op in self.ops:
            integer = op.kind == "linear" and op.weight and op.weight.format.integer
            floats.update(x for x in op.inputs if x is op.residual or not integer)
        floats.add(self.ops[-1].output)
        return floats

    def _buffers(self, program: _native.Program) -> dict[Value, int]:
        """A buffer of the program for each value; values never alive together share one."""
        last_use = {x: i for i, op in enumerate(self.ops) for x in op.inputs}
        buffers: dict[Value, int] = {}
        free: dict[tuple[int, bool], list[int]] = {}

        def size(x: Value) -> tuple[int, bool]:  # rows of experts are more than those of tokens
            return -(-x.width // PAD) * PAD, x.route is not None

        for i, op in enumerate(self.ops):
            out = op.output
            in_place = op.inputs[0] if op.kind in ("rope", "conv") else op.residual
            if op.kind == "rowwise" or op.factor != 1 or op.gated:
                in_place = None  # it is read after the result was written
            if out in buffers:
                pass  # of several weights, which all write it
            elif op is self.ops[-1]:
                buffers[out] = program.buffer(out.width)  # the runner returns the last buffer made
            elif in_place is not None and last_use[in_place] == i and in_place.width == out.width:
                buffers[out] = buffers[in_place]
                last_use[in_place] = -1  # the buffer lives on as the output's
            elif op.kind == "conv" or (
                op.kind == "rope" and not op.gated and out.width == op.inputs[0].width
            ):
                raise AssertionError(f"{op.kind} works in place: its row must not be read after it")
            else:
                spare = free.get(size(out))
                buffers[out] = spare.pop() if spare else program.buffer(out.width)
            for x in dict.fromkeys(op.inputs):
                if last_use[x] == i:
                    free.setdefault(size(x), []).append(buffers[x])
        return buffers


@dataclass(frozen=True)
class _Writer:
    """Operations of a graph on their way to a program.

    buffers: of all values. floats: values that are read as floats. ids: the program's weights by
    the id() of packed ones. planes_for: of values that are read as planes of bf16, a weight that
    does. rotaries: of the program; -1 for none.
    """

    program: _native.Program
    buffers: Mapping[Value, int]
    floats: set[Value]
    ids: Mapping[int, int]
    planes_for: Mapping[Value, PackedWeight]
    rotaries: Mapping[Rotary | None, int]

    def write(self, op: _Op) -> None:
        """Adds an operation to the program."""
        program, ids, planes_for = self.program, self.ids, self.planes_for
        src = self.buffers[op.inputs[0]] if op.inputs else -1
        dst = self.buffers[op.output]
        weight = ids[id(op.weight)] if op.weight is not None else -1
        reader = ids[id(planes_for[op.output])] if op.output in planes_for else -1
        residual = -1 if op.residual is None else self.buffers[op.residual]
        chosen = op.route.chosen if op.route else 0
        if op.kind == "embed":
            program.embed(weight, dst, op.factor)
        elif op.kind == "select":
            program.select(src, dst)
        elif op.kind == "rope":
            assert op.attention is not None
            rotary = self.rotaries[op.attention.rotary]
            program.rope(
                src, op.layer, op.norm, op.k_norm, op.eps, dst, rotary, op.gated, op.name,
                op.norms_last,
            )  # fmt: skip
        elif op.kind == "attention":
            how = op.attention
            assert how is not None
            sinks = np.array(how.sinks, np.float32) if how.sinks else None
            program.attention(src, dst, op.layer, how.window, how.scale, how.cap, sinks)
        elif op.kind == "conv":
            assert op.taps is not None
            program.conv(op.name, src, op.taps)
        elif op.kind == "recurrence":
            h = op.recurrent
            assert h is not None
            assert op.rate is not None
            assert op.bias is not None
            program.recurrence(
                op.name, src, dst, h.k_heads, h.v_heads, h.k_dim, h.v_dim, op.a, op.b,
                op.rate, op.bias, h.tiled,
            )  # fmt: skip
        elif op.kind == "gated":
            h = op.recurrent
            assert h is not None
            program.gated(
                op.name, src, self.buffers[op.inputs[1]], dst, h.v_heads, h.k_heads, h.v_dim,
                op.column, op.stride, op.activation, op.norm, op.eps, op.single,
            )  # fmt: skip
        elif op.kind == "route":
            assert op.route is not None
            experts, chosen = op.route.experts, op.route.chosen
            program.route(op.name, src, dst, experts, chosen, op.of_all)
        elif op.kind == "combine":
            shares = self.buffers[op.inputs[1]]
            program.combine(op.name, src, shares, dst, residual, op.output.width)
        elif op.kind == "linear":
            if op.shadow is not None:
                rows = program.weight(op.shadow.rows.native())
                program.head(op.name, weight, rows, op.shadow.bounds, src, dst)
                return
            fast = bool(op.inputs) and op.inputs[0] in planes_for
            program.linear(
                op.name, weight, src, dst, residual, op.selected, fast, op.column, op.bias,
                op.factor, op.cap, chosen, op.expert_rows,
            )  # fmt: skip
        else:
            width = op.output.width
            rotation = op.rotation
            block, signs = (0, None) if rotation is None else (rotation.block, rotation.signs)
            program.rowwise(
                op.name, src, dst, width, op.glu, op.up, op.norm, op.eps,
                op.rounding, op.selected, op.output in self.floats, reader, residual,
                block, signs, op.inverse, chosen, op.spread, op.limit,
            )  # fmt: skip
        if reader >= 0 and op.kind != "rowwise":
            program.to_bf16_planes(reader, dst, op.selected)


def _has_copies(op: _Op) -> bool:
    """Whether the core can copy a layer's weight so that single rows and columns are read."""
    if op.kind != "linear" or op.weight is None or op.bias is not None or op.selected:
        return False
    if op.factor != 1 or op.cap or op.route:
        return False
    format = op.weight.format
    return format.layout.name in _native.two_bit_layouts and not format.scales.group


def _pieces(values: F32, sizes: list[int]) -> list[F32]:
    """Consecutive pieces of these sizes; where experts have some, those of a piece together."""
    if values.ndim not in (1, 2) or values.shape[-1] != sum(sizes):
        raise ValueError(f"bias: must have {sum(sizes)} values, but got shape {values.shape}")
    pieces = np.split(values, list(accumulate(sizes[:-1])), axis=-1)
    return [np.ascontiguousarray(piece).reshape(-1) for piece in pieces]
