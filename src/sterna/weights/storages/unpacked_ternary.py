"""The weights of `packed_ternary` before they are packed: trits as floats, and the same scale.

    weight        float [M, K] of -1, 0 and 1
    weight_scale  one float

Models of the class autobitlinear in offline mode also run from these tensors. In online mode there
is no scale, and the floats are masters.
"""

from __future__ import annotations

import numpy as np

from sterna.formats.arithmetic import first_index
from sterna.weights.storages.base import FLOATS, TERNARY, Layer, Levels
from sterna.weights.storages.packed_ternary import trit_scale


def recognises(layer: Layer) -> bool:
    """Whether this is a BitNet layer of floats that uses its scale."""
    q = layer.quantization
    if not (q.declared and layer.masters and layer.dtype in FLOATS) or q.online:
        return False
    return layer.has("weight_scale") or not q.divides


def read(layer: Layer) -> Levels:
    """Read the trits, and check them."""
    scale, trits = trit_scale(layer), layer.weight.values()
    wrong = (trits != 0) & (np.abs(trits) != 1)
    if wrong.any():
        at = first_index(wrong)
        layer.fail(
            "weight", "-1, 0 and 1, as there is a weight_scale", f"{trits[at]} at {list(at)}"
        )
    return Levels(TERNARY, trits.astype(np.int8), scale)
