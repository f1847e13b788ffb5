"""BitNet's packed ternary weights: four rows' trits in a byte, and one scale for all.

    weight        uint8 [M / 4, K]   row i * M / 4 + r in bits 2i of byte row r; code = trit + 1
    weight_scale  one float          `linear_class` bitlinear: divide by it; autobitlinear: multiply

bitnet-b1.58-2B-4T (autobitlinear), Falcon-E, Falcon3-1.58bit, Llama3-8B-1.58 (bitlinear).
"""

from __future__ import annotations

import numpy as np

from sterna import formats
from sterna.weights.storages.base import F32, FLOATS, TERNARY, Layer, Levels


def recognises(layer: Layer) -> bool:
    """Whether the weight is stored as bytes."""
    return layer.dtype == "U8"


def read(layer: Layer) -> Levels:
    """Read the packed codes as they are, and check them; the scale multiplies the trits."""
    M, K = layer.shape
    if M % 4:
        layer.fail("weight", "output features in fours, for a packed layer", M)
    info = layer.checkpoint.require(f"{layer.part.name}.weight", (M // 4, K), "U8")
    scale = trit_scale(layer)
    codes = layer.checkpoint.read(info.name)
    if not formats.get("i2").codes_valid(codes, layer.tensors.threads):
        remedy = "the file is damaged, or the layer is not ternary"
        layer.fail("weight", "two-bit codes 0, 1 and 2", "a code 3", remedy)
    return Levels(TERNARY, codes, scale, is_packed=True)


def trit_scale(layer: Layer) -> F32:
    """Read the value of a trit of 1, float32 (): `weight_scale`, or 1 / `weight_scale`."""
    info = layer.info("weight_scale")
    if info.shape not in ((), (1,)) or info.dtype not in FLOATS:
        layer.fail("weight_scale", "one float", f"{info.dtype} {list(info.shape)}")
    stored = layer.floats("weight_scale", info.shape).reshape(())
    if not layer.quantization.divides:
        return stored
    if stored == 0:
        layer.fail("weight_scale", "a scale to divide by", 0.0)
    with np.errstate(over="ignore"):
        inverse = np.asarray(np.float32(1) / stored, np.float32)
    if not np.isfinite(inverse):
        layer.fail("weight_scale", "a scale whose inverse is finite", stored)
    return inverse
