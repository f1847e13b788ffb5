"""Layers that architectures share: which matrices run as one, and what they are called."""

from __future__ import annotations

import numpy as np

from sterna.formats import PackedWeight
from sterna.graph import Graph, Value
from sterna.models.config import TransformerConfig
from sterna.weights.sources import Linear, WeightSource

__all__ = ["attention", "embedding", "gate_up", "head", "linear", "norm", "output"]


def embedding(g: Graph, c: TransformerConfig, w: WeightSource) -> tuple[Value, PackedWeight]:
    """The residual stream at the first layer, and the table it came from."""
    table = w.table("model.embed_tokens", c.vocab_size, c.hidden_size)
    return g.embed(table), table


def norm(g: Graph, c: TransformerConfig, w: WeightSource, x: Value, name: str) -> Value:
    """RMSNorm with the weight `name`.weight."""
    return g.norm(x, w.vector(f"{name}.weight", x.width), c.rms_norm_eps, name)


def linear(
    g: Graph,
    c: TransformerConfig,
    w: WeightSource,
    x: Value,
    name: str,
    parts: list[Linear],
    residual: Value | None = None,
) -> Value:
    """x W^T (+ residual) (+ bias) of linear layers that run as one: their results side by side.

    Layers that have norms of their own for their inputs run one by one.
    """
    bias = None
    if c.linear_norm_eps:
        weights = [weight for p in parts for weight in w.matrix(p.name, [p])]
        inputs = [_own_norm(g, c, w, x, p) for p in parts]
    else:
        weights = w.matrix(name, parts)
        inputs = [x] * len(weights)
    if parts[0].bias:
        bias = np.concatenate([w.vector(f"{p.name}.bias", p.M) for p in parts])
    return g.linear(inputs, weights, name, residual, bias)


def _own_norm(g: Graph, c: TransformerConfig, w: WeightSource, x: Value, part: Linear) -> Value:
    name = f"{part.name}.rms_norm"
    return g.norm(x, w.vector(f"{name}.weight", part.K), c.linear_norm_eps, name)


def attention(
    g: Graph, c: TransformerConfig, w: WeightSource, h: Value, layer: int, name: str,
    *, bias: bool = False, qk_norm: bool = False,
) -> Value:  # fmt: skip
    """Attention of layer `layer`, up to o_proj; q, k and v are one matrix.

    bias: of q, k and v; qk_norm: an RMSNorm of each head of q and k before the rotation.
    """
    d, q_width, kv_width = c.hidden_size, c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    parts = [
        Linear(f"{name}.q_proj", q_width, d, bias),
        Linear(f"{name}.k_proj", kv_width, d, bias),
        Linear(f"{name}.v_proj", kv_width, d, bias),
    ]
    qkv = linear(g, c, w, h, f"{name}.qkv_proj", parts)
    if not qk_norm:
        return g.attention(qkv, layer)
    q_norm, k_norm = (w.vector(f"{name}.{n}_norm.weight", c.head_dim) for n in "qk")
    return g.attention(qkv, layer, (q_norm, k_norm), c.rms_norm_eps)


def gate_up(g: Graph, c: TransformerConfig, w: WeightSource, h: Value, name: str) -> Value:
    """The row [gate | up] of an FFN, one matrix."""
    d, ff = c.hidden_size, c.intermediate_size
    parts = [Linear(f"{name}.{n}_proj", ff, d, c.mlp_bias) for n in ("gate", "up")]
    return linear(g, c, w, h, f"{name}.gate_up_proj", parts)


def output(
    g: Graph, c: TransformerConfig, w: WeightSource, h: Value, x: Value, name: str,
    *, bias: bool = False,
) -> Value:  # fmt: skip
    """x + h W^T: o_proj or down_proj, back to the residual stream."""
    return linear(g, c, w, h, name, [Linear(name, x.width, h.width, bias)], residual=x)


def head(
    g: Graph, c: TransformerConfig, w: WeightSource, x: Value, embedding: PackedWeight
) -> Value:
    """Logits of the rows that are wanted; a tied head is the embedding's table.

    An exact head has a shadow beside its table.
    """
    x = norm(g, c, w, g.select(x), "model.norm")
    table = embedding if c.tied else w.table("lm_head", c.vocab_size, c.hidden_size)
    return g.head(x, table, w.shadow(table), "lm_head")
