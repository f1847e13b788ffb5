"""DenseShift's and S3's latents, as `sterna.train` writes them: each bit is the sign of a float.

    w_sign, w_1 .. w_T   float [M, K]
    w_sparse             float [M, K]   only S3 has it
    scale                float [M]      its sign does not count

Equations 1 to 4 of "Demystifying Power-of-Two Quantization" define the weights
(`formats.power_of_two.from_latents`). DenseShift published no files; these names are ours.
"""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.formats.power_of_two import from_latents
from sterna.weights.storages.base import Layer, Levels

MAX_SHIFTS = 7  # the largest exponent of E3P2


def recognises(layer: Layer) -> bool:
    """Whether the signs are stored as latents."""
    return layer.has("w_sign")


def read(layer: Layer) -> Levels:
    """Read the powers of two that the latents represent."""
    M, K = layer.shape
    count = next(t for t in range(1, MAX_SHIFTS + 2) if not layer.has(f"w_{t}")) - 1
    zero = layer.has("w_sparse")
    if not count or layer.has(f"w_{MAX_SHIFTS + 1 - zero}"):
        layer.fail("w_sign", f"w_1 to at most w_{MAX_SHIFTS - zero} next to it", f"{count}")
    scale = np.abs(layer.floats("scale", (M,)))
    if (scale == 0).any():
        layer.fail("scale", "scales that are not 0", f"0 at [{int((scale == 0).argmax())}]")
    made = from_latents(
        layer.floats("w_sign", (M, K)),
        [layer.floats(f"w_{t}", (M, K)) for t in range(1, count + 1)],
        layer.floats("w_sparse", (M, K)) if zero else None,
        scale,
    )
    codebook = formats.get("pot4z" if zero else "pot4").codebook
    assert codebook is not None
    levels = made.levels().astype(codebook.dtype)
    return Levels(tuple(codebook.levels), levels, made.scale)
