"""`ModelBuilder`: the layers that architectures share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats import PackedWeight
from sterna.graph import GraphBuilder, Heads, Value
from sterna.graph.heads import gate_heads
from sterna.graph.ops import (
    EmbedOp,
    GatedOp,
    HiddenStatesOp,
    LayerNormOp,
    Op,
    RowwiseOp,
    SplitHeadsOp,
)
from sterna.models.config import TransformerConfig
from sterna.models.linear_layers import LinearLayers, rotated
from sterna.models.options import LLAMA_ATTENTION, AttentionOptions
from sterna.weights.sources import Linear, WeightSource

__all__ = ["Attend", "FeedForward", "ModelBuilder"]

F32 = npt.NDArray[np.float32]
#: Names in config.json -> the activations that compute the same.
SAME_ACTIVATION = {"gelu_new": "gelu_pytorch_tanh"}


@dataclass(eq=False)
class ModelBuilder:
    """Adds the layers of a model to `graph`.

    Layers are named as in the checkpoint; `weights` reads their tensors by these names. `config`
    has the model's sizes. Rows of activations are `Value`s, float32 [tokens, width].

    table: the weight of the embedding, which `embedding` reads and a tied head uses.
    """

    graph: GraphBuilder
    config: TransformerConfig
    weights: WeightSource
    table: PackedWeight | None = None

    def with_config(self, **fields: Any) -> ModelBuilder:
        """Return a builder for the same graph with other values of some fields of `config`."""
        return replace(self, config=replace(self.config, **fields))

    def add(self, op: Op) -> Value:
        """Add an operation to the graph; return its output."""
        return self.graph.add(op)

    def embedding(self, factor: float = 1.0) -> Value:
        """Look up the tokens' rows of the embedding, times the factor: [tokens, hidden_size]."""
        name, c = "model.embed_tokens", self.config
        self.table = self.weights.table(name, c.vocab_size, c.hidden_size)
        x = self.add(EmbedOp(weight=self.table, factor=factor))
        rotation = c.hadamard.of_rows(name, c.hidden_size) if c.hadamard else None
        if rotation is None:
            return x
        return self.add(RowwiseOp(name=name, x=x, rotation=rotation, inverse=True))

    def norm_weight(self, name: str, size: int, plus_one: bool = False) -> F32:
        """Read the multiplier of a norm: `name`.weight, or 1 + it, rounded once."""
        weight = self.weights.vector(f"{name}.weight", size)
        return np.float32(1) + weight if plus_one else weight

    def taps(self, name: str, channels: int, width: int) -> F32:
        """Read the weight of a depthwise convolution: float32 [width, channels]."""
        weight = self.weights.vector(f"{name}.weight", channels, 1, width)
        return np.ascontiguousarray(weight.reshape(channels, width).T)

    def norm(
        self,
        x: Value,
        name: str,
        *,
        residual: Value | None = None,
        plus_one: bool = False,
        factor: float = 1.0,
    ) -> Value:
        """RMSNorm with the weight `name`.weight, as `GraphBuilder.norm`.

        plus_one: multiply by 1 + weight.
        """
        weight = self.norm_weight(name, x.width, plus_one)
        return self.graph.norm(x, weight, self.config.rms_norm_eps, name, residual, factor)

    def layer_norm(
        self,
        x: Value,
        name: str,
        *,
        weight: bool = True,
        bias: bool = True,
        plus_one: bool = False,
        factor: float = 1.0,
    ) -> Value:
        """LayerNorm, times the factor.

        weight, bias: whether `name`.weight and `name`.bias exist. plus_one: multiply by 1 + weight.
        """
        scale = (
            self.norm_weight(name, x.width, plus_one) if weight else np.ones(x.width, np.float32)
        )
        scale = scale * np.float32(factor)
        shift = self.weights.vector(f"{name}.bias", x.width) * np.float32(factor) if bias else None
        eps = self.config.rms_norm_eps
        return self.add(LayerNormOp(name=name, x=x, weight=scale, bias=shift, eps=eps))

    def linear(
        self,
        x: Value,
        name: str,
        width: int,
        *,
        bias: bool = False,
        residual: Value | None = None,
        factor: float = 1.0,
        exact: bool = False,
        kernel: tuple[int, ...] = (),
    ) -> Value:
        """x W^T (+ bias) (+ residual): [tokens, width], with the weight `name`.weight.

        factor: as in `GraphBuilder.linear`. exact: the weight keeps the checkpoint's type.
        kernel: the shape of a convolution's weight behind its first axis, if it is stored so.
        """
        layer = Linear(name, width, x.width, bias, exact=exact, kernel=kernel)
        return self.merged_linear(x, name, [layer], residual=residual, factor=factor)[0]

    def merged_linear(
        self,
        x: Value,
        name: str,
        layers: Sequence[Linear],
        *,
        residual: Value | None = None,
        factor: float = 1.0,
    ) -> tuple[Value, list[int]]:
        """Run linear layers of x as one; return their outputs side by side in a row, and the
        column where each begins.

        name: the name of the merged layer, for errors. residual, factor: as in `linear`.
        """
        linear = LinearLayers(self.graph, self.config, self.weights)
        return linear.merged(x, name, layers, residual, factor)

    def attention(
        self,
        h: Value,
        layer: int,
        name: str,
        options: AttentionOptions = LLAMA_ATTENTION,
        *,
        heads: Heads | None = None,
        keys_of: Value | None = None,
    ) -> Value:
        """Self-attention of a layer up to the output projection: [tokens, heads * head_dim].

        heads: the heads of this layer, if they are not the model's. keys_of: the result of
        `attention` for an earlier layer whose keys and values this one reads; then it has neither
        k_proj nor v_proj.
        """
        r, o = heads or self.config.heads, options
        qkv = self._qkv(h, name, r, o, keys_of is not None)
        sinks = self.weights.vector(f"{name}.sinks", r.n_heads).tolist() if o.sinks else ()
        attention = self.config.attention[layer]
        attention = replace(attention, scale=o.scale, cap=o.cap, slopes=o.slopes)
        attention = replace(attention, sinks=tuple(sinks))
        out = self.graph.attention(
            qkv,
            layer,
            attention,
            self._qkv_norms(name, r, o, keys_of is not None),
            self.config.rms_norm_eps,
            gated=o.gated,
            norms_last=o.qk_norm is not None and o.qk_norm.after_rotation,
            heads=r,
            keys_are_values=o.keys_are_values,
            keys_of=keys_of,
        )
        if not o.gated:
            return out
        return self.add(
            GatedOp(
                name=f"{name}.gate",
                x=out,
                gates=qkv,
                column=r.head_dim,
                stride=2 * r.head_dim,
                heads=gate_heads(out.width, r.n_heads),
                activation="sigmoid",
            )
        )

    def _qkv(self, h: Value, name: str, r: Heads, o: AttentionOptions, shared: bool) -> Value:
        """Add the row [q | k | v]; of q only, if keys and values are another layer's."""
        widths = [r.n_heads * r.head_dim * (1 + o.gated)]
        if not shared:
            widths += [r.n_kv_heads * r.head_dim] * (1 if o.keys_are_values else 2)
        names = [f"{name}.{part}" for part in o.names]
        if o.stored:
            widths, names = [sum(widths)], [f"{name}.{o.stored}"]
        parts = [Linear(n, M, h.width, o.bias) for n, M in zip(names, widths, strict=False)]
        qkv, _ = self.merged_linear(h, f"{name}.qkv_proj", parts)
        if o.clip:
            qkv = self.graph.activation(qkv, "clip", f"{name}.clip_qkv", (-o.clip, o.clip))
        if o.by_head and r.n_kv_heads > 1:  # with one KV head, the queries come first already
            group = r.n_heads // r.n_kv_heads
            name = f"{name}.split_heads"
            qkv = self.add(
                SplitHeadsOp(name=name, x=qkv, n_heads=r.n_kv_heads, parts=3, first=group)
            )
        return qkv

    def _qkv_norms(self, name: str, r: Heads, o: AttentionOptions, shared: bool) -> tuple[F32, ...]:
        """Read the weights of the norms of q, k and v; of q only, if keys are another layer's."""
        norms = list[F32]()
        if o.qk_norm:
            n = o.qk_norm
            counts = (r.n_heads, r.n_kv_heads) if n.whole else (1, 1)
            for part, count in list(zip(n.names, counts, strict=True))[: 1 if shared else 2]:
                size = count * r.head_dim
                if n.weight:
                    norms.append(self.norm_weight(f"{name}.{part}", size, n.plus_one))
                else:
                    norms.append(np.ones(size, np.float32))
        if o.v_norm and not shared:
            norms.append(np.ones(r.head_dim, np.float32))
        return tuple(norms)

    def output(
        self,
        h: Value,
        x: Value | None,
        name: str,
        *,
        bias: bool = False,
        factor: float = 1.0,
        norm_name: str | None = None,
        plus_one: bool = False,
    ) -> Value:
        """x + factor * h W^T (+ bias), back to hidden_size: o_proj or down_proj. x None: no x.

        norm_name: the RMSNorm of the added term. Its weight takes the factor: a factor before the
        norm would be divided out. plus_one: the norm multiplies by 1 + weight.
        """
        width = self.config.hidden_size
        if norm_name is None:
            return self.linear(h, name, width, bias=bias, residual=x, factor=factor)
        added = self.linear(h, name, width, bias=bias)
        weight = self.norm_weight(norm_name, width, plus_one)
        weight = weight * np.float32(factor) if factor != 1 else weight
        return self.graph.norm(added, weight, self.config.rms_norm_eps, norm_name, x)

    def gate_up(self, h: Value, name: str, *, fused: bool = False) -> Value:
        """Add the row [gate | up] of an FFN.

        fused: the checkpoint has gate and up as one matrix, gate_up_proj.
        """
        width, bias = self.config.intermediate_size, self.config.mlp_bias
        both = f"{name}.gate_up_proj"
        if fused:
            return self.linear(h, both, 2 * width, bias=bias)
        parts = [Linear(f"{name}.{n}_proj", width, h.width, bias) for n in ("gate", "up")]
        return self.merged_linear(h, both, parts)[0]

    def glu(self, gate_up: Value, name: str) -> Value:
        """act(gate) * up of a row [gate | up], with the model's activation."""
        return self.graph.glu(gate_up, self._activation, name)

    def feed_forward(
        self, h: Value, x: Value, name: str, *, factor: float = 1.0, norm_name: str | None = None
    ) -> Value:
        """x + factor * down(act(gate(h)) * up(h)), Llama's FFN; norm_name: as in `output`."""
        h, down = self.glu(self.gate_up(h, name), f"{name}.act"), f"{name}.down_proj"
        bias = self.config.mlp_bias
        return self.output(h, x, down, bias=bias, factor=factor, norm_name=norm_name)

    def ungated(
        self,
        h: Value,
        x: Value,
        up: str,
        down: str,
        *,
        bias: bool = True,
        parameters: tuple[float, ...] = (),
    ) -> Value:
        """x + down(act(up(h))), an FFN without a gate; up, down: names of the layers.

        parameters: as in `GraphBuilder.activation`.
        """
        h = self.linear(h, up, self.config.intermediate_size, bias=bias)
        h = self.graph.activation(h, self._activation, f"{up}.act", parameters)
        return self.output(h, x, down, bias=bias)

    @property
    def _activation(self) -> str:
        activation = self.config.activation
        return SAME_ACTIVATION.get(activation, activation)

    def select(self, x: Value, *, mean: bool = False) -> Value:
        """Keep the rows of x whose logits are wanted, as `GraphBuilder.select`."""
        return self.graph.select(x, mean)

    def head(
        self,
        x: Value,
        *,
        plus_one: bool = False,
        factor: float = 1.0,
        cap: float = 0.0,
        hidden_states: bool = False,
        bias: bool = False,
    ) -> Value:
        """Select rows, normalise them by `model.norm`, an RMSNorm, and compute logits * factor.

        plus_one: the norm multiplies by 1 + weight. Its weight takes the factor, one rounding each;
        a bias of logits does not. hidden_states: steps may ask for the head's input of all tokens
        (`HiddenStatesOp`). cap, bias: as in `logits`.
        """
        name, eps = "model.norm", self.config.rms_norm_eps
        weight = self.norm_weight(name, self.config.hidden_size, plus_one)
        if factor != 1:
            weight = weight * np.float32(factor)
        if hidden_states:
            self.add(HiddenStatesOp(name=name, x=x, norm=weight, eps=eps))
        x = self.graph.norm(self.select(x), weight, eps, name)
        return self.logits(x, cap=cap, bias=bias)

    def logits(self, x: Value, *, cap: float = 0.0, bias: bool = False) -> Value:
        """Compute logits of normalised rows: [rows, vocab_size]; of a classifier [rows, labels].

        A tied head uses the embedding. cap: logits become cap * tanh(logits / cap); 0: they stay.
        bias: `lm_head.bias` exists. An exact head has a shadow of its table; logits with a cap or a
        bias are not screened (`GraphBuilder.head`).
        """
        c, w = self.config, self.weights
        if c.labels:
            return self.graph.head(x, w.table("score", c.labels, c.hidden_size), None, "score")
        rotation = c.hadamard.of_input("lm_head", c.hidden_size) if c.hadamard else None
        x = rotated(self.graph, x, rotation, "lm_head")
        table = self.table if c.tied else w.table("lm_head", c.vocab_size, c.hidden_size)
        assert table is not None
        added = w.vector("lm_head.bias", c.vocab_size) if bias else None
        # Embeddings need no logits, and a screen for them takes memory.
        shadow = None if cap or bias or c.pooling else w.shadow(table)
        return self.graph.head(x, table, shadow, "lm_head", cap, added)


#: An FFN sublayer: (builder, norm(x), x, the layer's number, the FFN's name) -> the next x.
FeedForward = Callable[[ModelBuilder, Value, Value, int, str], Value]
#: Attention up to the output projection: (builder, norm(x), the layer's number, its name) -> heads.
Attend = Callable[[ModelBuilder, Value, int, str], Value]
