"""Layers that architectures share: which matrices run as one, and what they are called."""

from __future__ import annotations

from sterna.formats import PackedWeight
from sterna.graph import Graph, Value
from sterna.models.config import TransformerConfig
from sterna.models.weights import Linear, WeightSource

__all__ = ["attention", "embedding", "gate_up", "head", "norm", "output"]


def embedding(g: Graph, c: TransformerConfig, w: WeightSource) -> tuple[Value, PackedWeight]:
    """The residual stream at the first layer, and the table it came from."""
    table = w.table("model.embed_tokens", c.vocab_size, c.hidden_size)
    return g.embed(table), table


def norm(g: Graph, c: TransformerConfig, w: WeightSource, x: Value, name: str) -> Value:
    """RMSNorm with the weight `name`.weight."""
    return g.norm(x, w.vector(f"{name}.weight", x.width), c.rms_norm_eps, name)


def attention(
    g: Graph, c: TransformerConfig, w: WeightSource, h: Value, layer: int, name: str
) -> Value:
    """Attention of layer `layer`, up to o_proj; q, k and v are one matrix."""
    d, q_width, kv_width = c.hidden_size, c.n_heads * c.head_dim, c.n_kv_heads * c.head_dim
    parts = [
        Linear(f"{name}.q_proj", q_width, d),
        Linear(f"{name}.k_proj", kv_width, d),
        Linear(f"{name}.v_proj", kv_width, d),
    ]
    qkv = w.matrix(f"{name}.qkv_proj", parts)
    return g.attention(g.linear(h, qkv, f"{name}.qkv_proj"), layer)


def gate_up(g: Graph, c: TransformerConfig, w: WeightSource, h: Value, name: str) -> Value:
    """The row [gate | up] of an FFN, one matrix."""
    d, ff = c.hidden_size, c.intermediate_size
    parts = [Linear(f"{name}.gate_proj", ff, d), Linear(f"{name}.up_proj", ff, d)]
    return g.linear(h, w.matrix(f"{name}.gate_up_proj", parts), f"{name}.gate_up_proj")


def output(g: Graph, w: WeightSource, h: Value, x: Value, name: str) -> Value:
    """x + h W^T: o_proj or down_proj, back to the residual stream."""
    weight = w.matrix(name, [Linear(name, x.width, h.width)])
    return g.linear(h, weight, name, residual=x)


def head(
    g: Graph, c: TransformerConfig, w: WeightSource, x: Value, embedding: PackedWeight
) -> Value:
    """Logits of the rows that are wanted; a tied head is the embedding's table.

    An exact head has a shadow beside its table.
    """
    x = norm(g, c, w, g.select(x), "model.norm")
    table = embedding if c.tied else w.table("lm_head", c.vocab_size, c.hidden_size)
    return g.head(x, table, w.shadow(table), "lm_head")
