"""What the rounded lookup formats tl1_0, tl2_0 and tmac2_0 share: their sums in numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.formats.arithmetic import F32, quantize_activations
from sterna.formats.base import PackedWeight
from sterna.formats.i2 import Ternary

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RoundedLookup(Ternary):
    """Ternary levels whose products with x are summed by `lookup`, and rounded to int8 then.

    The tables of a token have one scale, as in T-MAC (arXiv 2407.00088) and bitnet.cpp (arXiv
    2502.11880, section 3.2.1): a sum v is stored as round(v * (127 / d)), half to even, where d is
    the largest of the token's sums.

    lookup: weights of a table. fit: where K is not a multiple of it, the rest goes by pairs.
    planes: 2 for two-bit codes of which each bit, as -1 or 1, is looked up by itself.
    """

    lossless: bool = False
    lookup: int = 2
    fit: int = 64
    planes: int = 1

    def reference_linear(self, x: F32, packed: PackedWeight) -> F32:
        """y [N, M] from x [N, K] in numpy, with the kernels' arithmetic: the oracle."""
        q, s_x = quantize_activations(np.asarray(x, np.float32))
        levels = self.unpack(packed, "scalar", 1).astype(np.int64)
        pad = ((0, 0), (0, -packed.K % 64))
        q, levels = np.pad(q.astype(np.int64), pad), np.pad(levels, pad)
        s_w = np.broadcast_to(packed.scale * np.float32(self.unit), (packed.M,))
        y = np.zeros((q.shape[0], packed.M), np.float32)
        for n, row in enumerate(q):
            total, unit = self._sum(row, levels)
            # Codes 0..3 of two planes stand for -3..3, two more than twice a ternary level.
            shift = row.sum() if self.planes == 2 else np.int64(0)
            t = total.astype(np.float32) * unit + shift.astype(np.float32)
            y[n] = t * (s_w * s_x[n])
        return y

    def _sum(self, x: I64, levels: I64) -> tuple[I64, np.float32]:
        """(sums of the rounded table entries [M], what one of them is worth) for x [K]."""
        fit = x.size // self.fit * self.fit
        pieces = [(x[:fit], levels[:, :fit], self.lookup), (x[fit:], levels[:, fit:], 2)]
        size = max((np.abs(part).reshape(-1, g).sum(1).max(initial=0) for part, _, g in pieces))
        largest = np.float32(max(size, 1))
        inverse, unit = np.float32(127) / largest, largest / np.float32(127)
        total = np.zeros(levels.shape[0], np.int64)
        for part, weights, g in pieces:
            for bit in range(self.planes):
                signs = 2 * ((weights + 1) >> bit & 1) - 1 if self.planes == 2 else weights
                v = (signs * part).reshape(levels.shape[0], part.size // g, g).sum(2)
                entries: npt.NDArray[Any] = np.rint(v.astype(np.float32) * inverse)
                total += (2 if self.planes == 1 else 1 << bit) * entries.sum(1).astype(np.int64)
        return total, np.float32(unit)
