"""The matrices whose formats may be chosen, the formats that a runtime has, and their bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sterna import formats
from sterna.convert.allocation import Choice
from sterna.convert.plan import Item, Plan
from sterna.errors import RequestError, shown
from sterna.files.words import words
from sterna.formats import Experts, Format
from sterna.formats.ggml_blocks import BLOCKS
from sterna.formats.learned_tables import learned
from sterna.formats.level_tables import Table
from sterna.weights.sources import PackedWeights

__all__ = [
    "TABLES",
    "TARGETS",
    "Unit",
    "candidates",
    "fixed_bytes",
    "nbytes_of",
    "sizes_of",
    "units_of",
    "with_tables",
]

F32 = npt.NDArray[np.float32]
#: Formats whose table each matrix learns (`learned_tables`), and the k that share a scale.
TABLES = ("nf2", "nf4")
_GROUPS = (32, 64, 128, 192)
#: Formats of each runtime, of which those are taken whose blocks divide the rows. t5 has the levels
#: of i2 in fewer bits. GGUF's Q2_0 and TQ2_0 are for trained levels: Q2_K and more are better. Its
#: IQ1 to IQ3 are left out: an index stands for four or eight weights, so their errors cannot move
#: the weights behind them one by one, and their rounding takes no weights of errors (`indexed`).
TARGETS = {
    "sterna": (
        *(f"{base}:g{group}" for base in ("i1", "t5", "i2p", "i4", *TABLES) for group in _GROUPS),
        *words("q2_0 q2_k q3_k iq4_xs iq4_nl q4_k q4_1 q5_0 q5_1 q5_k q6_k q8_0"),
    ),
    "gguf": tuple(words("q2_k q3_k iq4_xs iq4_nl q4_0 q4_k q4_1 q5_0 q5_1 q5_k q6_k q8_0")),
}


class Unit(NamedTuple):
    """Rows that get a format of their own: those of a part of an item, or of a whole item.

    name: of the piece that `Plan.read` yields; item: of the item; begin: its first row in it.
    """

    name: str
    item: str
    begin: int
    M: int
    K: int


def units_of(planned: Plan) -> list[Unit]:
    """List the units; a packed source hands out items whole."""
    units = list[Unit]()
    for item in planned.items.values():
        if item.kind not in ("matrix", "experts", "table") or item.exact:
            continue
        if item.kind == "matrix" and not isinstance(planned.source, PackedWeights):
            at = 0
            for part in item.parts:
                units.append(Unit(part.name, item.name, at, part.M, part.K))
                at += part.M
        else:
            units.append(Unit(item.name, item.name, 0, item.M, item.K))
    return units


def candidates(target: str, K: int) -> list[Format]:
    """Return the formats of a runtime for rows of K columns."""
    if target not in TARGETS:
        raise RequestError(f"for: must be one of {', '.join(TARGETS)}, but got {shown(target)}")
    every = (formats.get(name) for name in TARGETS[target])
    fitting = [f for f in every if K % f.scales.block == 0]
    return fitting or [formats.get("f16" if target == "gguf" else "i8")]


def with_tables(possible: Sequence[Format], rows: F32, squares: F32, threads: int) -> list[Format]:
    """Replace the formats of TABLES by those of tables that fit rows float32 [M, K].

    squares: E[x_k²] of the layer's inputs, or their variances, float32 [K]. The smallest groups
    tell the table of a base, which the others share: they differ little, and a table takes a dozen
    roundings.
    """
    learnt = dict[str, str]()
    made = list[Format]()
    for format in possible:
        base, _, scales = format.name.partition(":")
        if base in TABLES:
            if base not in learnt:
                assert isinstance(format, Table)
                learnt[base] = learned(format, rows, squares, threads).name.partition(":")[0]
            format = formats.get(f"{learnt[base]}:{scales}")
        made.append(format)
    return made


def nbytes_of(target: str, format: Format, M: int, K: int) -> int:
    """Count the bytes that a matrix takes in the written model, at most."""
    if target == "gguf":
        block = BLOCKS.get(format.name)
        return M * (K // block.k * block.nbytes if block else 2 * K)
    kind = format.scales.kinds[0] if format.scales.group else "row"
    shape = format.scales.packed_shape(kind, format.layout, M, K)
    size = np.dtype(format.scales.packed_dtype).itemsize
    return format.n_tiles(M) * format.tile_bytes(K) + prod(shape) * size


def sizes_of(target: str, unit: Unit) -> list[Choice]:
    """Return a choice of each candidate, without its loss."""
    return [
        Choice(f.name, nbytes_of(target, f, unit.M, unit.K), 0.0)
        for f in candidates(target, unit.K)
    ]


def fixed_bytes(planned: Plan) -> int:
    """Count the bytes of small arrays and of matrices that keep their formats."""
    return sum(_fixed(planned, item) for item in planned.items.values())


def _fixed(planned: Plan, item: Item) -> int:
    if item.kind in ("vector", "bias"):
        return 4 * item.M
    if item.exact:
        pieces = (piece for _, piece in planned.read(item))
        return sum(p.weight.nbytes if isinstance(p, Experts) else p.nbytes for p in pieces)
    return 0
