"""ParetoQ's training files: latent floats, and the range to which each row is clipped.

    weight           float [M, K]
    weight_clip_val  float [M, 1]   alpha of a row; below 1e-5 it counts as 1e-5
    w_bits           of config.json: 1, 2, 3, 4; 0 (or 1.58) means ternary

    bits  levels k of W / alpha                     weight
    1     sign                                      alpha k      0 stays 0
    0     round(1.5 clamp(.., -.99, .99))           2/3 alpha k  -1, 0, 1
    2     2 round(2 clamp(.., -.99, .99) - .5) + 1  alpha k / 4  -3, -1, 1, 3
    3, 4  clamp(round(..), -2^(bits-1), 2^(bits-1) - 1)  alpha k

MobileLLM-ParetoQ (arXiv 2502.02631, section 3). Activations are floats in training; Sterna rounds
them to int8 unless a float format is asked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sterna.errors import ModelFormatError
from sterna.formats.i2p import four_levels
from sterna.weights.storages.base import BINARY, F32, FOUR, SIXTEEN, TERNARY, Floats, Layer, Levels

CLIP = "weight_clip_val"
SMALLEST = np.float32(1e-5)


def recognises(layer: Layer) -> bool:
    """Whether this or another layer of the file has clipping values; `read` requires them."""
    if layer.has(CLIP):
        return True
    return "w_bits" in layer.checkpoint.config and any(
        name.endswith(CLIP) for name in layer.checkpoint.tensors
    )


def read(layer: Layer) -> Levels | Floats:
    """Read the levels to which the layer's forward pass rounds."""
    bits = _bits(layer)
    if bits == 16:
        return layer.weight
    stored = layer.floats(CLIP, (layer.part.M, 1))
    alpha = np.maximum(stored, SMALLEST)
    w = layer.weight.values()
    with np.errstate(over="ignore"):  # infinities are clipped
        kinds, levels, unit = _rounded(w, alpha, bits)
    scale = np.asarray(alpha[:, 0] * unit, np.float32)
    if not np.isfinite(scale).all():
        layer.fail(CLIP, "a range whose levels are finite", stored.max())
    return Levels(kinds, levels, scale, lambda: _dequantised(levels, scale))


def _bits(layer: Layer) -> int:
    """Return the bits of a level: 1, 0 (ternary), 2, 3, 4, or 16 (not quantised)."""
    value = layer.checkpoint.config.get("w_bits")
    if value == 1.58:
        return 0
    if type(value) is not int or not (0 <= value <= 4 or value in (16, 32)):
        rule = f"0, 1, 2, 3, 4 or 16, as there is {layer.part.name}.{CLIP}"
        raise ModelFormatError(layer.checkpoint.path / "config.json", "w_bits", rule, value)
    return min(value, 16)


def _rounded(
    w: F32, alpha: F32, bits: int
) -> tuple[tuple[int, ...], npt.NDArray[np.int8], np.float32]:
    """Return (possible levels, levels [M, K], value of level 1 as a share of alpha)."""
    if bits == 1:
        signs = np.sign(w).astype(np.int8)
        return (BINARY if signs.all() else TERNARY), signs, np.float32(1)
    if bits == 2:
        return FOUR, four_levels(w, alpha), np.float32(0.25)
    if bits == 0:
        ratio = np.clip(w / alpha, np.float32(-0.99), np.float32(0.99))
        levels = np.rint(ratio * np.float32(1.5))
        return TERNARY, levels.astype(np.int8), np.float32(1) / np.float32(1.5)
    top = 1 << (bits - 1)
    return SIXTEEN, np.clip(np.rint(w / alpha), -top, top - 1).astype(np.int8), np.float32(1)


def _dequantised(levels: npt.NDArray[np.int8], scale: F32) -> Floats:
    return Floats("f32", levels * scale[:, None])
