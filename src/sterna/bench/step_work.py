"""The bytes that a step reads and the operations that it computes, counted from the model."""

from __future__ import annotations

from sterna import _native
from sterna.engine import Engine
from sterna.graph import Graph, Heads

__all__ = ["attended_bytes", "attention_operations", "bytes_per_step", "operations_per_token"]


def bytes_per_step(engine: Engine, context: float, batch: int = 1) -> float:
    """Count the bytes that a step reads: all weights and scales once, each sequence's cache."""
    of_sequence = attended_bytes(engine, context) + engine.kv_cache.state_bytes
    return engine.model.weight_bytes_per_token + of_sequence * batch


def _attended(graph: Graph, context: float) -> list[tuple[Heads, float]]:
    """List the heads of each attention layer, and the positions that a token attends to."""
    return [
        (op.heads, min(context, op.attention.window or context)) for op in graph.attention_layers
    ]


def attended_bytes(engine: Engine, context: float) -> float:
    """Count the bytes of keys and values that a token reads."""
    return sum(
        positions
        * _native.kv_bytes(1, heads.n_kv_heads, heads.head_dim, engine.kv_dtype, heads.stored == 1)
        for heads, positions in _attended(engine.model.graph, context)
    )


def attention_operations(graph: Graph, context: float) -> float:
    """Count the multiplications and additions of a token's scores and weighted values."""
    layers = _attended(graph, context)
    return sum(4.0 * heads.n_heads * heads.head_dim * positions for heads, positions in layers)


def operations_per_token(engine: Engine, n: int, context: float) -> float:
    """Count the multiplications and additions of a prompt token; n tokens share the head's."""
    linears = engine.model.graph.linears
    layers = 2.0 * sum(op.n_weights * op.active for op in linears[:-1])
    head = 2.0 * linears[-1].n_weights
    attention = attention_operations(engine.model.graph, context)
    return layers + attention + head / n
