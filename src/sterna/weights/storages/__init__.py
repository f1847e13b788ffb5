"""How checkpoints store a linear layer, one storage a file.

A storage is a module with two functions:

    recognises(layer) -> bool             by its tensors' names and dtypes, then by config.json
    read(layer) -> Levels | Floats        what the stored tensors mean, checked

The first of `STORAGES` that recognises a layer reads it; plain floats come last and take the rest.
Nothing here depends on the architecture's name, and nothing rounds: `weights/packing.py` puts the
result into a weight format.
"""

from __future__ import annotations

from types import ModuleType

from sterna.files.words import words
from sterna.weights.storages import (
    awq,
    bitsandbytes,
    compressed,
    float_levels,
    fp4,
    fp8,
    gptq,
    hqq,
    mlx,
    packed_ternary,
    paretoq,
    plain_floats,
    power_of_two,
    shift_latents,
    ternary_masters,
    torchao,
    unpacked_ternary,
)
from sterna.weights.storages.base import Floats, Layer, Levels, Linear, Tensors
from sterna.weights.storages.quantization import quantization

__all__ = ["STORAGES", "Floats", "Layer", "Levels", "Linear", "Tensors", "quantization", "read"]

STORAGES: tuple[ModuleType, ...] = (
    power_of_two,
    awq,
    gptq,
    mlx,
    fp8,
    fp4,
    bitsandbytes,
    compressed,
    torchao,
    hqq,
    shift_latents,
    packed_ternary,
    paretoq,
    unpacked_ternary,
    ternary_masters,
    float_levels,
    plain_floats,
)


#: The tensors of a linear layer that a storage or the graph may read.
SUFFIXES = (
    *words("""
    weight weight_scale weight_clip_val bias qweight qzeros scales g_idx biases
    weight_packed weight_shape weight_zero_point weight_g_idx
    weight_scale_inv weight_scale_2 weight_global_scale w_sign w_sparse scale
    """),
    *fp8.OF_INPUTS,
    *(f"w_{t}" for t in range(1, shift_latents.MAX_SHIFTS + 1)),
    *torchao.SUFFIXES,
    *hqq.SUFFIXES,
    *bitsandbytes.SUFFIXES,
)


def read(layer: Layer) -> Levels | Floats:
    """Read a layer's tensors; ModelFormatError, UnsupportedModelError or NonFiniteError."""
    storage = next(s for s in STORAGES if s.recognises(layer))
    weights: Levels | Floats = storage.read(layer)
    return weights
