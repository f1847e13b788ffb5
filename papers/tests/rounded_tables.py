"""The rounded lookup formats tl1_0, tl2_0 and tmac2_0: their sums in numpy.

The tables of a token have one scale, as in T-MAC (arXiv 2407.00088) and bitnet.cpp (arXiv
2502.11880, section 3.2.1): a sum v is stored as round(v * (127 / d)), half to even, where d is the
largest of the token's sums.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from oracle.arithmetic import F32, quantize_activations

from sterna.formats import PackedWeight

I64 = npt.NDArray[np.int64]


class Tables(NamedTuple):
    """lookup: weights of a table. fit: where K is not a multiple of it, the rest goes by pairs.

    planes: 2 for two-bit codes of which each bit, as -1 or 1, is looked up by itself.
    """

    lookup: int = 2
    fit: int = 64
    planes: int = 1


TABLES = {"tl1_0": Tables(), "tl2_0": Tables(3, 48), "tmac2_0": Tables(4, planes=2)}


def rounded_tables(x: F32, packed: PackedWeight) -> F32:
    """y [N, M] from x [N, K]."""
    tables = TABLES[packed.format.name.partition(":")[0]]
    q, s_x = quantize_activations(x)
    levels = packed.unpacked().astype(np.int64)
    pad = ((0, 0), (0, -packed.K % 64))
    q, levels = np.pad(q.astype(np.int64), pad), np.pad(levels, pad)
    s_w = np.broadcast_to(packed.scale * np.float32(packed.format.unit), (packed.M,))
    y = np.zeros((q.shape[0], packed.M), np.float32)
    for n, row in enumerate(q):
        total, unit = _sum(tables, row, levels)
        # Codes 0..3 of two planes stand for -3..3, two more than twice a ternary level.
        shift = row.sum() if tables.planes == 2 else np.int64(0)
        t = total.astype(np.float32) * unit + shift.astype(np.float32)
        y[n] = t * (s_w * s_x[n])
    return y


def _sum(tables: Tables, x: I64, levels: I64) -> tuple[I64, np.float32]:
    """(sums of the rounded table entries [M], what one of them is worth) for x [K]."""
    fit = x.size // tables.fit * tables.fit
    pieces = [(x[:fit], levels[:, :fit], tables.lookup), (x[fit:], levels[:, fit:], 2)]
    size = max((np.abs(part).reshape(-1, g).sum(1).max(initial=0) for part, _, g in pieces))
    largest = np.float32(max(size, 1))
    inverse, unit = np.float32(127) / largest, largest / np.float32(127)
    total = np.zeros(levels.shape[0], np.int64)
    for part, weights, g in pieces:
        for bit in range(tables.planes):
            signs = 2 * ((weights + 1) >> bit & 1) - 1 if tables.planes == 2 else weights
            v = (signs * part).reshape(levels.shape[0], part.size // g, g).sum(2)
            entries = np.rint(v.astype(np.float32) * inverse)
            total += (2 if tables.planes == 1 else 1 << bit) * entries.sum(1).astype(np.int64)
    return total, np.float32(unit)
