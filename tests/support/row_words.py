"""The output of an operation for the rows of a table, compared with its definition in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from helpers import ISAS, assert_same_bits

from sterna import _native, ops
from sterna.graph import GraphBuilder, Heads, Value
from sterna.graph.ops import EmbedOp

N, WIDTH, EPS = 128, 67, 1e-5  # a width that eight does not divide
TABLE = np.random.default_rng(7).standard_normal((N, WIDTH)).astype(np.float32) * 3 + 1


def rows(write: Callable[[GraphBuilder, Value], Value], isa: str, threads: int) -> np.ndarray:
    """The output for each row of the table."""
    g = GraphBuilder(Heads(1, 1, 16))
    x = write(g, g.add(EmbedOp(weight=ops.pack(TABLE, format="f32"))))
    identity = ops.pack(np.eye(N, x.width, dtype=np.float32), format="f32")
    g.linear(g.select(x), identity, "lm_head")
    cache = _native.KvCache([(1, 16)], 2, "f32")
    spans = [(0, N, N, np.arange(2, dtype=np.int32))]
    tokens = np.arange(N, dtype=np.int32)
    return g.graph.compile().run(cache, tokens, spans, isa, threads)[0][:, : x.width]


def check(
    write: Callable[[GraphBuilder, Value], Value], expected: np.ndarray, rtol: float = 2e-6
) -> None:
    """Close to the definition, and the same bits on all units and threads."""
    first = rows(write, ISAS[0], 1)
    np.testing.assert_allclose(first, expected, rtol=rtol, atol=rtol)
    for isa in ISAS:
        assert_same_bits(rows(write, isa, 3), first)
