"""Streams of a token, rows of another's size, and thresholds, against numpy in float64."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import ISAS
from row_words import TABLE, check, rows

from sterna import ops
from sterna.graph import GraphBuilder, Piece, Value
from sterna.graph.ops import AltUpOp, CutoffOp, EmbedOp, RescaleOp, ScaleOp

STREAMS, WIDTH = 3, 16
X = TABLE.astype(np.float64)


def part(g: GraphBuilder, x: Value, begin: int, width: int) -> Value:
    """Columns of x as a row of their own."""
    return g.place(width, [(x, Piece(width, begin=begin))], "part")


def test_streams_are_mixed() -> None:
    """Before a layer, each stream and the sum of all, times its factors."""
    streams = X[:, : STREAMS * WIDTH].reshape(-1, STREAMS, WIDTH)
    factors = X[:, 50:59].reshape(-1, STREAMS, STREAMS)
    expected = streams + factors @ streams

    def write(g: GraphBuilder, x: Value) -> Value:
        row, by = part(g, x, 0, STREAMS * WIDTH), part(g, x, 50, STREAMS**2)
        return g.add(AltUpOp(name="altup", x=row, factors=by, streams=STREAMS, active=1))

    check(write, expected.reshape(len(X), -1), rtol=2e-5)


def test_what_a_layer_changed() -> None:
    """Behind it, each stream and (1 + its factor) times the change of the active one."""
    streams = X[:, : STREAMS * WIDTH].reshape(-1, STREAMS, WIDTH)
    change = X[:, 48:64] - streams[:, 2]
    expected = streams + (1 + X[:, 60:63, None]) * change[:, None]

    def write(g: GraphBuilder, x: Value) -> Value:
        row, by = part(g, x, 0, STREAMS * WIDTH), part(g, x, 60, STREAMS)
        return g.add(
            AltUpOp(
                name="altup",
                x=row,
                factors=by,
                streams=STREAMS,
                active=2,
                made=part(g, x, 48, WIDTH),
            )
        )

    check(write, expected.reshape(len(X), -1), rtol=2e-5)


@pytest.mark.parametrize("least", [1e-5, 1e3])
@pytest.mark.parametrize("more", [False, True])
def test_rescale(least: float, more: bool) -> None:
    """Columns get the size of another row."""
    of, mine = X[:, :WIDTH], X[:, 20 : 20 + WIDTH]
    size = np.sqrt((of**2).mean(1) / np.maximum((mine**2).mean(1), least))
    expected = mine * size[:, None] + (of if more else 0)

    def write(g: GraphBuilder, x: Value) -> Value:
        a = part(g, x, 0, WIDTH)
        return g.add(
            RescaleOp(
                name="r", x=x, size_of=a, column=20, least=least, residual=a if more else None
            )
        )

    check(write, expected, rtol=2e-5)


@pytest.mark.parametrize("deviations", [-0.5, 0.0, 1.5])
def test_cutoff(deviations: float) -> None:
    """Of the first columns alone."""
    cut, width = X.copy(), 40
    gates = cut[:, :width]
    threshold = gates.mean(1, keepdims=True) + deviations * gates.std(1, keepdims=True)
    cut[:, :width] = np.maximum(0, gates - threshold)
    check(lambda g, x: g.add(CutoffOp(name="c", x=x, width=width, deviations=deviations)), cut)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["cutoff", "rescale"])
def test_what_is_not_finite_is_named(name: str, isa: str) -> None:
    """Neither comparison hides it."""
    large = np.full(TABLE.shape[1], 3e38, np.float32)

    def write(g: GraphBuilder, x: Value) -> Value:
        x = g.add(ScaleOp(name="s", x=g.add(ScaleOp(name="s", x=x, factors=large)), factors=large))
        return (
            g.add(CutoffOp(name="c", x=x, width=20, deviations=1.0))
            if name == "cutoff"
            else g.add(RescaleOp(name="c", x=x, size_of=x))
        )

    with pytest.raises(FloatingPointError, match="c"):
        rows(write, isa, 1)


def test_what_does_not_fit_is_refused() -> None:
    for write, rule in (
        (
            lambda g, x: g.add(AltUpOp(name="a", x=x, factors=x, streams=3, active=0)),
            "streams: must divide",
        ),
        (
            lambda g, x: g.add(AltUpOp(name="a", x=x, factors=x, streams=67, active=67)),
            "active: must be",
        ),
        (
            lambda g, x: g.add(AltUpOp(name="a", x=x, factors=x, streams=67, active=0)),
            "factors: must be",
        ),
        (lambda g, x: g.add(CutoffOp(name="c", x=x, width=68, deviations=0.0)), "width: must lie"),
        (lambda g, x: g.add(RescaleOp(name="r", x=x, size_of=x, column=1)), "column: must be"),
        (lambda g, x: g.add(RescaleOp(name="r", x=x, size_of=x, least=0.0)), "least: must be"),
    ):
        with pytest.raises(ValueError, match=rule):
            rows(write, ISAS[0], 1)


def test_a_shorter_table() -> None:
    """Tokens behind its last row take its first."""
    table = TABLE[:100]

    def write(g: GraphBuilder, x: Value) -> Value:
        return g.add(EmbedOp(weight=ops.pack(table, format="f32"), first_for_rest=True))

    check(write, np.concatenate([table, np.repeat(table[:1], 28, axis=0)]))
