"""The gates of recurrent layers: their bounds, and the decays that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ISAS

from sterna import _native, ops
from sterna.graph import GraphBuilder, Heads, RecurrentHeads
from sterna.graph.ops import ConvOp, EmbedOp, RecurrenceOp


def gates_of(a: np.ndarray, b: np.ndarray, rate: np.ndarray, isa: str) -> np.ndarray:
    """float32 [2, heads]: the decay and beta of a head for each a, b and rate."""
    heads, width = len(a), 2 + 3 * len(a)  # q and k, v, a and b
    row = np.concatenate([np.ones(2 + heads), a, b]).astype(np.float32)
    table = np.zeros((width, width), np.float32)
    table[0] = row
    g = GraphBuilder(Heads(1, 1, 16))
    taps = np.ones((2 + heads, 1), np.float32)
    x = g.add(
        ConvOp(
            name="conv1d",
            x=g.add(EmbedOp(weight=ops.pack(table, format="f32"))),
            taps=np.ascontiguousarray(taps.T),
        )
    )
    zeros = np.zeros(heads, np.float32)
    g.add(
        RecurrenceOp(
            name="gates",
            x=x,
            heads=RecurrentHeads(1, heads, 1, 1),
            a=2 + heads,
            b=2 + 2 * heads,
            rate=rate,
            bias=zeros,
        )
    )
    # The gates take the place of a and b, which nobody reads but this test.
    g.linear(g.select(x), ops.pack(np.eye(width, dtype=np.float32), format="f32"), "lm_head")
    p, pages = g.graph.compile(), np.zeros(1, np.int32)
    cache, states = _native.KvCache([(1, 16)], 1, "f32"), [_native.State(p.state_bytes)]
    logits = p.run(cache, np.zeros(1, np.int32), [(0, 1, 1, pages)], isa, 1, states=states)[0]
    return logits[0, 2 + heads :].reshape(2, heads).copy()


@pytest.mark.parametrize("isa", ISAS)
def test_gates_keep_their_bounds(isa: str) -> None:
    """Relative errors of softplus, seen through a decay of 1/e, and of the sigmoid: 2^-21."""
    a = np.linspace(-40, 40, 1601).astype(np.float32)
    softplus = np.logaddexp(0, a.astype(np.float64))
    rate = (-1 / softplus).astype(np.float32)
    decay, beta = gates_of(a, 2 * a, rate, isa).astype(np.float64)
    wanted = np.exp(rate * softplus)
    assert np.abs(decay / wanted - 1).max() <= 2.0**-21
    sigmoid = 1 / (1 + np.exp(-2 * a.astype(np.float64)))
    assert np.abs(beta / sigmoid - 1).max() <= 2.0**-21
    extreme = np.array([-3e38, -100, 100, 3e38], np.float32)
    decay, beta = gates_of(extreme, extreme, np.full(4, -1, np.float32), isa)
    np.testing.assert_array_equal(decay, np.array([1, 1, 0, 0], np.float32))  # 0 forgets all
    assert (beta[:2] < 1e-37).all()
    assert (beta[2:] == 1).all()


@pytest.mark.parametrize(
    ("count", "strength", "rule"), [(3, 1.0, "rate: must have"), (4, 0.0, "strength: must be")]
)
def test_other_decays_are_refused(count: int, strength: float, rule: str) -> None:
    """One of each head, or of each row of its state; beta is not always 0."""
    g, numbers = GraphBuilder(Heads(1, 1, 16)), np.ones(count, np.float32)
    x = g.add(EmbedOp(weight=ops.pack(np.ones((64, 64), np.float32), format="f32")))
    x = g.add(
        RecurrenceOp(
            name="layer",
            x=x,
            heads=RecurrentHeads(1, 2, 2, 8),
            a=40,
            b=50,
            rate=numbers,
            bias=numbers,
            strength=strength,
        )
    )
    g.linear(g.select(x), ops.pack(np.ones((64, 16), np.float32), format="f32"), "lm_head")
    with pytest.raises(ValueError, match=rule):
        g.graph.compile()
