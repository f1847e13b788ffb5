"""AWQ's files in the packing "gemm": integers of four bits in words, a scale for each group.

    qweight  int32 [K, M / 8]        codes of neighbours of M in a word
    scales   float16 [groups, M]
    qzeros   int32 [groups, M / 8]   zero points, packed as qweight

The eight codes of a word lie in the order of ORDER, the first lowest. A weight is
scale (code - zero).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.weights.storages.base import Floats, Layer, Levels
from sterna.weights.storages.integers import integers, unpacked, with_zeros

BITS = 4
ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # columns of a word's codes
CODES = len(ORDER)


def recognises(layer: Layer) -> bool:
    """Whether there are words of codes for each k."""
    M, K = layer.shape
    return layer.has("qweight") and layer.info("qweight").shape == (K, M // CODES)


def read(layer: Layer) -> Levels | Floats:
    """Read the levels, and check them."""
    M, K = layer.shape
    name = layer.part.name
    if M % CODES:
        layer.fail("qweight", f"output features in {CODES}s", M)
    layer.checkpoint.require(f"{name}.qweight", (K, M // CODES), "I32")
    groups = layer.info("scales").shape[0] if layer.info("scales").shape else 0
    if not groups or K % groups:
        layer.fail("scales", f"a scale for each of some groups of K={K}", f"{groups} groups")
    scale = layer.floats("scales", (groups, M)).T
    layer.checkpoint.require(f"{name}.qzeros", (groups, M // CODES), "I32")
    zeros, codes = (_codes(layer.checkpoint.read(f"{name}.{s}")) for s in ("qzeros", "qweight"))
    kinds, levels = with_zeros(layer, codes, zeros.astype(np.int16), BITS)
    return integers(kinds, levels, np.ascontiguousarray(scale))


def _codes(words: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Unpack words [rows, M / 8] to codes [rows, M]."""
    stored = unpacked(words, BITS, 1).reshape(len(words), -1, CODES)
    return stored[:, :, np.argsort(ORDER)].reshape(len(words), -1)
