"""compressed-tensors' integers (llm-compressor): W8A8 as bytes, W4A16 and W8A16 in words.

    weight            int8 [M, K]                    format int-quantized
    weight_packed     int32 [M, K bits / 32]         format pack-quantized: codes of 4 or 8 bits,
                                                     level + 2^(bits-1), the first k lowest
    weight_shape      int [2]                        M, K of weight_packed
    weight_scale      float [M, groups], [M, 1] or [1]
    weight_zero_point absent, or zeros

Sterna rounds activations as W8A8 does, except for the scale, which is max |x| / 127.5 there and
max |x| / 127 here. If groups are not of neighbours (weight_g_idx), the weights become float32.
Codes with zero points and activations with a stored scale (input_scale) are refused.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.weights.storages.base import F32, Floats, Layer, Levels
from sterna.weights.storages.integers import WORD_BITS, group_index, integers, unpacked


def recognises(layer: Layer) -> bool:
    """Whether there are words of codes, or bytes with a sign."""
    return layer.has("weight_packed") or (layer.has("weight") and layer.dtype == "I8")


def read(layer: Layer) -> Levels | Floats:
    """Read the levels, and check them."""
    for suffix in ("input_scale", "input_zero_point"):
        if layer.has(suffix):
            layer.fail(suffix, "activations with a scale of each token (dynamic)", "a fixed one")
    if layer.has("weight_zero_point"):
        zeros = layer.checkpoint.read(layer.info("weight_zero_point").name)
        if np.any(zeros):
            layer.fail("weight_zero_point", "symmetric codes, with zeros of 0", "others")
    scale = _scale(layer)
    index = group_index(layer, "weight_g_idx", scale.shape[1])
    if not layer.has("weight_packed"):
        info = layer.checkpoint.require(f"{layer.part.name}.weight", layer.shape, "I8")
        levels = np.asarray(layer.checkpoint.read(info.name))
        return integers(range(-128, 128), levels, scale, index)
    kinds, levels = _packed(layer)
    return integers(kinds, levels, scale, index)


def _packed(layer: Layer) -> tuple[range, npt.NDArray[np.int8]]:
    """Return the possible levels, and the levels [M, K]."""
    M, K = layer.shape
    words = layer.info("weight_packed")
    bits = next((b for b in (4, 8) if words.shape == (M, -(-K * b // WORD_BITS))), 0)
    if words.dtype != "I32" or not bits:
        layer.fail(
            "weight_packed",
            f"I32 [M, K bits / 32] with M={M}, K={K} and 4 or 8 bits",
            f"{words.dtype} {list(words.shape)}",
        )
    shape = layer.checkpoint.require(f"{layer.part.name}.weight_shape", (2,), ("I64", "I32"))
    said = [int(n) for n in layer.checkpoint.read(shape.name)]
    if said != [M, K]:
        layer.fail("weight_shape", f"{[M, K]}", said)
    middle = 1 << (bits - 1)
    codes = unpacked(layer.checkpoint.read(words.name), bits, 1)[:, :K].astype(np.int16)
    return range(-middle, middle), (codes - middle).astype(np.int8)


def _scale(layer: Layer) -> F32:
    """Read the scales as float32 [M, groups]."""
    M, K = layer.shape
    shape = layer.info("weight_scale").shape
    if shape in ((), (1,), (M,)):
        flat = layer.floats("weight_scale", shape).reshape(-1, 1)
        return np.ascontiguousarray(np.broadcast_to(flat, (M, 1)))
    if len(shape) != 2 or shape[0] != M or not shape[1] or K % shape[1]:
        layer.fail("weight_scale", f"scales [1], [{M}, 1] or [{M}, groups of K={K}]", list(shape))
    return layer.floats("weight_scale", shape)
