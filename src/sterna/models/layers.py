"""Layers that architectures share: names of their matrices, and which of these run as one."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from sterna.formats import PackedWeight
from sterna.graph import AdaptedLayer, GraphBuilder, Heads, Rotation, Value
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

__all__ = [
    "LLAMA_ATTENTION",
    "LLAMA_NORMS",
    "NO_FACTORS",
    "AttentionOptions",
    "Factors",
    "HeadNorms",
    "Norms",
    "attention",
    "embedding",
    "gate_up",
    "head",
    "layer_norm",
    "linear",
    "linear_parts",
    "logits",
    "norm",
    "norm_weight",
    "output",
    "ungated",
]


@dataclass(frozen=True)
class Norms:
    """Names of the RMSNorms of a layer's halves, attention and FFN; None if there is none.

    reads: of each half's input. adds: of its result. plus_one: of all, as in `norm_weight`.
    layer: those of inputs, and the last, are LayerNorms; weight, bias: what these have.
    """

    reads: tuple[str | None, str | None] = ("input_layernorm", "post_attention_layernorm")
    adds: tuple[str | None, str | None] = (None, None)
    plus_one: bool = False
    layer: bool = False
    weight: bool = True
    bias: bool = True


LLAMA_NORMS = Norms()


@dataclass(frozen=True)
class HeadNorms:
    """The RMSNorms of q and k.

    names: of their weights; weight: whether they have any. whole: over all heads together, instead
    of each. last: after the rotation, instead of before. plus_one: as in `norm_weight`.
    """

    names: tuple[str, str] = ("q_norm", "k_norm")
    weight: bool = True
    whole: bool = False
    last: bool = False
    plus_one: bool = False


@dataclass(frozen=True)
class AttentionOptions:
    """How attention differs from Llama's.

    bias: of q, k and v.
    qk_norm: norms of q and k; v_norm: values are normalised like keys, without a weight.
    scale, cap, slopes: of scores, as in `graph.Attention`; sinks: each query head has one, `sinks`.
    gated: rows of q_proj are [q | gate] of each head; sigmoid(gate) multiplies the head's result.
    names: of the matrices of q, k and v in the checkpoint.
    stored: name of the one matrix that holds q, k and v in the checkpoint; by_head: head by head,
    with grouped queries group by group. clip: a limit of q, k and v; 0: none.
    keys_are_values: there is no v_proj (`GraphBuilder.attention`).
    """

    bias: bool = False
    qk_norm: HeadNorms | None = None
    v_norm: bool = False
    scale: float | None = None
    cap: float = 0.0
    slopes: tuple[float, ...] = ()
    sinks: bool = False
    gated: bool = False
    names: tuple[str, str, str] = ("q_proj", "k_proj", "v_proj")
    stored: str = ""
    by_head: bool = False
    keys_are_values: bool = False
    clip: float = 0.0


@dataclass(frozen=True)
class Factors:
    """Factors of embeddings, of each half's result and of logits; logits_cap: a soft cap."""

    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0
    logits_cap: float = 0.0


LLAMA_ATTENTION, NO_FACTORS = AttentionOptions(), Factors()


def embedding(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, factor: float = 1.0
) -> tuple[Value, PackedWeight]:
    """Write the residual stream's first rows, factor * the table's; also return the table."""
    name = "model.embed_tokens"
    table = w.table(name, c.vocab_size, c.hidden_size)
    x = g.embed(table, factor)
    rotation = c.hadamard.of_rows(name, c.hidden_size) if c.hadamard else None
    return (g.rotate(x, rotation, name, inverse=True) if rotation else x), table


def norm(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, name: str,
    *, residual: Value | None = None, plus_one: bool = False, factor: float = 1.0,
) -> Value:  # fmt: skip
    """RMSNorm with the weight `name`.weight, as `GraphBuilder.norm`.

    plus_one: as in `norm_weight`.
    """
    weight = norm_weight(w, name, x.width, plus_one)
    return g.norm(x, weight, c.rms_norm_eps, name, residual, factor)


def layer_norm(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, name: str,
    *, weight: bool = True, bias: bool = True, factor: float = 1.0, plus_one: bool = False,
) -> Value:  # fmt: skip
    """LayerNorm, times the factor; weight, bias: whether there are `name`.weight and `name`.bias.

    plus_one: as in `norm_weight`.
    """
    scale = norm_weight(w, name, x.width, plus_one) if weight else np.ones(x.width, np.float32)
    scale = scale * np.float32(factor)
    shift = w.vector(f"{name}.bias", x.width) * np.float32(factor) if bias else None
    return g.layer_norm(x, scale, shift, c.rms_norm_eps, name)


def ungated(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, x: Value,
    names: tuple[str, str], activation: str, *, bias: bool = True,
    parameters: tuple[float, ...] = (),
) -> Value:  # fmt: skip
    """x + down(act(up(h))): an FFN without a gate; names: of up and down."""
    up = Linear(names[0], c.intermediate_size, c.hidden_size, bias)
    h = linear(g, c, w, h, up.name, [up])
    h = g.activation(h, activation, f"{up.name}.act", parameters)
    return output(g, c, w, h, x, names[1], bias=bias)


def norm_weight(
    w: WeightSource, name: str, size: int, plus_one: bool = False
) -> npt.NDArray[np.float32]:
    """Return a norm's multiplier: `name`.weight, or with plus_one 1 + it, rounded once."""
    weight = w.vector(f"{name}.weight", size)
    return np.float32(1) + weight if plus_one else weight


def linear(
    g: GraphBuilder,
    c: TransformerConfig,
    w: WeightSource,
    x: Value,
    name: str,
    parts: list[Linear],
    residual: Value | None = None,
    factor: float = 1.0,
) -> Value:
    """x W^T (+ residual) (+ bias) of linear layers that run as one: their results side by side.

    factor: as in `GraphBuilder.linear`.
    """
    return linear_parts(g, c, w, x, name, parts, residual, factor)[0]


def linear_parts(
    g: GraphBuilder,
    c: TransformerConfig,
    w: WeightSource,
    x: Value,
    name: str,
    parts: list[Linear],
    residual: Value | None = None,
    factor: float = 1.0,
) -> tuple[Value, list[int]]:
    """Write layers as `linear` does; also return the columns where each part's results begin.

    Layers with norms or rotations of their own inputs run one by one. Adapters may add to all that
    read x itself; a norm that is fused with the glu before it leaves no x.
    """
    bias = None
    rotations = [c.hadamard.of_input(p.name, p.K) for p in parts] if c.hadamard else [None]
    if c.linear_norm_eps:
        weights = [weight for p in parts for weight in w.matrix(p.name, [p])]
        inputs = [_own_norm(g, c, w, x, p) for p in parts]
    elif len(set(rotations)) > 1:
        weights = [weight for p in parts for weight in w.matrix(p.name, [p])]
        rotated = {r: _rotated(g, x, r, name) for r in rotations}
        inputs = [rotated[r] for r in rotations]
    else:
        weights = w.matrix(name, parts)
        inputs = [_rotated(g, x, rotations[0], name)] * len(weights)
    if parts[0].bias:
        bias = np.concatenate([w.vector(f"{p.name}.bias", p.M) for p in parts])
    out = g.linear(inputs, weights, name, residual, bias, factor)
    columns = _columns(parts, weights, out)
    if not c.linear_norm_eps or all(row is not x for row in inputs):
        named = zip(parts, columns, strict=True)
        g.adapted(x, [AdaptedLayer(p.name, p.M, p.K, column) for p, column in named], factor)
    return out, columns


def _columns(parts: list[Linear], weights: list[PackedWeight], row: Value) -> list[int]:
    """Return the column where each part's results begin; a weight may hold several parts."""
    starts = dict(zip(accumulate((x.M for x in weights), initial=0), row.starts, strict=False))
    columns, at, before = [], 0, 0  # `before`: the weight's rows begin there
    for part in parts:
        before = at if at in starts else before
        columns.append(starts[before] + at - before)
        at += part.M
    return columns


def _rotated(g: GraphBuilder, x: Value, rotation: Rotation | None, name: str) -> Value:
    return x if rotation is None else g.rotate(x, rotation, name)


def _own_norm(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, part: Linear
) -> Value:
    name = f"{part.name}.rms_norm"
    return g.norm(x, w.vector(f"{name}.weight", part.K), c.linear_norm_eps, name)


def attention(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, layer: int, name: str,
    options: AttentionOptions = LLAMA_ATTENTION, *, heads: Heads | None = None,
    keys_of: Value | None = None,
) -> Value:  # fmt: skip
    """Attention of layer `layer`, up to the projection back; q, k and v are one matrix.

    heads: of this layer, if they are not the model's. keys_of: the result of `attention` for an
    earlier layer; this layer reads its keys and values and has neither k_proj nor v_proj.
    """
    r, o = heads or c.heads, options
    widths = {"q": r.n_heads * r.head_dim * (1 + o.gated)}
    if keys_of is None:
        widths |= dict.fromkeys("k" if o.keys_are_values else "kv", r.n_kv_heads * r.head_dim)
    names = zip(o.names, widths.values(), strict=False)
    parts = [Linear(f"{name}.{n}", M, c.hidden_size, o.bias) for n, M in names]
    if o.stored:
        whole = sum(part.M for part in parts)
        parts = [Linear(f"{name}.{o.stored}", whole, c.hidden_size, o.bias)]
    qkv = linear(g, c, w, h, f"{name}.qkv_proj", parts)
    if o.clip:
        qkv = g.activation(qkv, "clip", f"{name}.clip_qkv", (-o.clip, o.clip))
    if o.by_head and r.n_kv_heads > 1:  # else the queries come first already
        group = r.n_heads // r.n_kv_heads
        qkv = g.split_heads(qkv, r.n_kv_heads, 3, f"{name}.split_heads", group)
    sinks = tuple(w.vector(f"{name}.sinks", r.n_heads).tolist()) if o.sinks else ()
    how = replace(c.attention[layer], scale=o.scale, cap=o.cap, sinks=sinks, slopes=o.slopes)
    norms = list[npt.NDArray[np.float32]]()
    if o.qk_norm:
        counts = (r.n_heads, r.n_kv_heads) if o.qk_norm.whole else (1, 1)
        norms = [
            norm_weight(w, f"{name}.{n}", count * r.head_dim, o.qk_norm.plus_one)
            if o.qk_norm.weight
            else np.ones(count * r.head_dim, np.float32)
            for n, count, _ in zip(o.qk_norm.names, counts, widths, strict=False)
        ]
    if o.v_norm and keys_of is None:
        norms.append(np.ones(r.head_dim, np.float32))
    last = o.qk_norm is not None and o.qk_norm.last
    out = g.attention(
        qkv, layer, how, tuple(norms), c.rms_norm_eps, o.gated, last, r, o.keys_are_values, keys_of
    )
    if not o.gated:
        return out
    column, stride = r.head_dim, 2 * r.head_dim
    return g.gated(out, qkv, column, stride, r.n_heads, "sigmoid", f"{name}.gate")


def gate_up(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, name: str,
    *, stored_fused: bool = False,
) -> Value:  # fmt: skip
    """Write the row [gate | up] of an FFN, one matrix; stored_fused: also in the checkpoint."""
    d, ff = c.hidden_size, c.intermediate_size
    parts = [Linear(f"{name}.{n}_proj", ff, d, c.mlp_bias) for n in ("gate", "up")]
    if stored_fused:
        parts = [Linear(f"{name}.gate_up_proj", 2 * ff, d, c.mlp_bias)]
    return linear(g, c, w, h, f"{name}.gate_up_proj", parts)


def output(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, h: Value, x: Value | None, name: str,
    *, bias: bool = False, factor: float = 1.0, norm_name: str | None = None,
    plus_one: bool = False,
) -> Value:  # fmt: skip
    """x + factor * h W^T: o_proj or down_proj, back to the residual stream; h W^T if x is None.

    norm_name: of an RMSNorm of the added term, whose weight takes the factor: a factor before the
    norm would be divided out. plus_one: as in `norm_weight`.
    """
    part = [Linear(name, c.hidden_size, h.width, bias)]
    if norm_name is None:
        return linear(g, c, w, h, name, part, residual=x, factor=factor)
    added = linear(g, c, w, h, name, part)
    weight = norm_weight(w, norm_name, added.width, plus_one)
    weight = weight * np.float32(factor) if factor != 1 else weight
    return g.norm(added, weight, c.rms_norm_eps, norm_name, x)


def head(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, embedding: PackedWeight,
    *, plus_one: bool = False, factor: float = 1.0, cap: float = 0.0, hidden_states: bool = False,
    bias: bool = False,
) -> Value:  # fmt: skip
    """Write the logits of the selected rows, times the factor, then capped.

    hidden_states: steps may ask for the head's input of all tokens (`GraphBuilder.hidden_states`).
    bias: as in `logits`; the factor does not apply to it.

    A tied head uses the embedding. The last norm's weight takes the factor, one rounding each. An
    exact head has a shadow of its table; capped logits are not screened (`GraphBuilder.head`).
    """
    weight = norm_weight(w, "model.norm", c.hidden_size, plus_one)
    if factor != 1:
        weight = weight * np.float32(factor)
    if hidden_states:
        g.hidden_states(x, weight, c.rms_norm_eps, "model.norm")
    x = g.norm(g.select(x), weight, c.rms_norm_eps, "model.norm")
    return logits(g, c, w, x, embedding, cap=cap, bias=bias)


def logits(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, x: Value, embedding: PackedWeight,
    *, cap: float = 0.0, bias: bool = False,
) -> Value:  # fmt: skip
    """Write logits of rows that are normalised already; of a classifier those of its labels.

    bias: `lm_head.bias`.
    """
    if c.labels:
        return g.head(x, w.table("score", c.labels, c.hidden_size), None, "score")
    rotation = c.hadamard.of_input("lm_head", c.hidden_size) if c.hadamard else None
    x = _rotated(g, x, rotation, "lm_head")
    table = embedding if c.tied else w.table("lm_head", c.vocab_size, c.hidden_size)
    added = w.vector("lm_head.bias", c.vocab_size) if bias else None
    # Embeddings need no logits, and a screen for them takes memory.
    shadow = None if cap or bias or c.pooling else w.shadow(table)
    return g.head(x, table, shadow, "lm_head", cap, added)
