"""Float masters of ternary weights: rounded at loading, as BitNet rounds them.

    weight  float [M, K]   ->  round(W / s) to -1, 0, 1 with s = mean |W|, one for the matrix

bitnet-b1.58-2B-4T-bf16 (autobitlinear, online), 1bitLLM's bitnet_b1_58-large and -3B. Nothing in
the tensors says so: `masters` comes from config.json or from the architecture.
"""

from __future__ import annotations

import numpy as np

from sterna.formats.i2 import absmean
from sterna.weights.storages.base import FLOATS, TERNARY, Layer, Levels

SMALLEST = 1e-5  # the forward pass clamps s to at least this


def recognises(layer: Layer) -> bool:
    """Whether the floats are masters."""
    return layer.masters and layer.dtype in FLOATS


def read(layer: Layer) -> Levels:
    """Round the weights (BitNet b1.58, equation 3)."""
    levels, scale = absmean(layer.weight.values(), None, SMALLEST)
    return Levels(TERNARY, levels, np.asarray(scale, np.float32))
