"""Gated DeltaNet: a delta rule behind a causal convolution. arXiv 2412.06464."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from sterna import _native
from sterna.errors import ModelFormatError
from sterna.graph import Piece, RecurrentHeads, Value
from sterna.graph.heads import F32, gate_heads
from sterna.graph.ops import ConvOp, GatedOp, RecurrenceOp
from sterna.models.builder import ModelBuilder
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_fields import Fields
from sterna.weights.sources import WeightSource

__all__ = ["Decay", "Row", "heads_of", "layer", "side_by_side", "split_taps"]

#: A row [q | k | v …] of a recurrent layer, and the columns where z, b and a begin.
Row = tuple[Value, int, int, int]


@dataclass(frozen=True)
class Decay:
    """How states decay, `rate` and `bias` of `RecurrenceOp`."""

    rate: F32
    bias: F32

    @classmethod
    def of(cls, w: WeightSource, name: str, heads: RecurrentHeads) -> Decay:
        """Read one of each value head: `A_log` and `dt_bias`."""
        a_log, bias = (w.vector(f"{name}.{n}", heads.v_heads) for n in ("A_log", "dt_bias"))
        return cls(-_native.exponentials(a_log), bias)


def heads_of(f: Fields) -> RecurrentHeads:
    """Read the sizes of a layer from config.json."""
    k_heads, v_heads = f.count("linear_num_key_heads"), f.count("linear_num_value_heads")
    if v_heads % k_heads:
        rule = f"a multiple of linear_num_key_heads={k_heads}"
        f.fail("linear_num_value_heads", rule, v_heads)
    k_dim = f.count("linear_key_head_dim", most=MAX_HEAD_DIM)
    v_dim = f.count("linear_value_head_dim", most=MAX_HEAD_DIM)
    return RecurrentHeads(k_heads, v_heads, k_dim, v_dim)


def split_taps(w: WeightSource, name: str, heads: RecurrentHeads, width: int) -> F32:
    """Read the convolutions of q, k and v, which the checkpoint has one by one.

    transformers 5 joins them, and saves them cut into thirds, whatever the widths of q, k and v.
    """
    k_width = heads.k_heads * heads.k_dim
    third = -(-heads.width // 3)
    own, thirds = (k_width, k_width, heads.v_width), (third, third, heads.width - 2 * third)
    try:
        return _joined_taps(w, name, own, width)
    except ModelFormatError:
        if min(thirds) < 1 or thirds == own:
            raise
        try:
            return _joined_taps(w, name, thirds, width)
        except ModelFormatError:
            pass
        raise  # of the two, the usual layout


def _joined_taps(w: WeightSource, name: str, rows: tuple[int, int, int], width: int) -> F32:
    taps = [
        w.vector(f"{name}.{part}_conv1d.weight", n, 1, width).reshape(n, width)
        for part, n in zip("qkv", rows, strict=True)
    ]
    return np.ascontiguousarray(np.concatenate(taps).T)


def side_by_side(m: ModelBuilder, parts: list[tuple[Value, int, int]], name: str) -> Value:
    """Put columns (row, begin, width) side by side; if the first row begins so, return it."""
    *starts, width = accumulate((n for _, _, n in parts), initial=0)
    first = parts[0][0]
    placed = list(zip(parts, starts, strict=True))
    if all(row is first and begin == to for (row, begin, _), to in placed):
        return first
    pieces = [(row, Piece(n, begin=begin, column=to)) for (row, begin, n), to in placed]
    return m.graph.place(width, pieces, name)


def layer(
    m: ModelBuilder,
    row: Row,
    heads: RecurrentHeads,
    name: str,
    taps: F32,
    decay: Decay,
    *,
    norm: str = "norm",
    eps: float,
    strength: float = 1.0,
    tiling: int | None = None,
    gates: Value | None = None,
    activation: str = "silu",
) -> Value:
    """Add a layer from its projections up to the output projection.

    taps: the weights of the convolution of q, k and v, float32 [width, columns]. norm, eps: the
    RMSNorm of the recurrence's output. gates: the row that has z, if it is another one.
    strength: as in `RecurrenceOp`. tiling: `k_heads` of `gate_heads`. activation: as in `GatedOp`.
    """
    x, z, b, a = row
    x = m.add(ConvOp(name=f"{name}.conv1d", x=x, taps=taps))
    out = m.add(
        RecurrenceOp(
            name=name,
            x=x,
            heads=heads,
            a=a,
            b=b,
            rate=decay.rate,
            bias=decay.bias,
            strength=strength,
        )
    )
    weight = m.weights.vector(f"{name}.{norm}.weight", heads.v_dim)
    return m.add(
        GatedOp(
            name=f"{name}.{norm}",
            x=out,
            gates=gates or x,
            column=z,
            stride=heads.v_dim,
            heads=gate_heads(out.width, heads.v_heads, tiling),
            activation=activation,
            norm=weight,
            eps=eps,
        )
    )
