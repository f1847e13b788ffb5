"""Pixtral's encoder of images of any size: Llama's layers, rotated by a patch's line and column.
arXiv 2410.07073.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.graph import Rotary, Value
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.vision.patches import lines_and_columns, patch_rows
from sterna.models.vision.tower import Encoder, Grid, graph_of, rotated_by_tower
from sterna.weights.sources import WeightSource

ACTIVATION = "gelu"
ACTIVATIONS = ("gelu", "silu")
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
    | {"num_attention_heads": 16, "num_channels": 3, "image_size": 1024, "patch_size": 16}
    | {"hidden_act": ACTIVATION, "rope_theta": 10000.0}
)
TOWER = "vision_tower"
PATCHES = f"{TOWER}.patch_conv"
F32 = npt.NDArray[np.float32]
Norm = tuple[str, float] | None


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of the encoder, whose rotations `encoder` makes."""
    return {**rotated_by_tower(f), "rms_norm_eps": 1e-5}


def encoder(c: TransformerConfig, w: WeightSource, n_layers: int, norm: Norm = None) -> Encoder:
    """Add the first layers, and a norm of their result, (its name, its epsilon)."""
    patch = c.fields.count("patch_size")
    kernel = (c.fields.count("num_channels"), patch, patch)
    d, pixels = c.hidden_size, kernel[0] * patch**2
    rotary = _axial(c.fields.number("rope_theta"), c.head_dim)
    turned = replace(c, attention=tuple(replace(a, rotary=rotary) for a in c.attention))

    def write(m: ModelBuilder, x: Value) -> None:
        x = m.linear(x, PATCHES, d, kernel=kernel)
        x = m.norm(x, f"{TOWER}.ln_pre")
        for i in range(n_layers):
            p = f"{TOWER}.transformer.layers.{i}"
            h = m.norm(x, f"{p}.attention_norm")
            h = m.attention(h, i, f"{p}.attention")
            x = m.output(h, x, f"{p}.attention.o_proj")
            h = m.norm(x, f"{p}.ffn_norm")
            x = m.feed_forward(h, x, f"{p}.feed_forward")
        if norm is not None:
            name, eps = norm
            m.with_config(rms_norm_eps=eps).norm(x, name)

    def rows(image: F32, grid: Grid) -> F32:
        return patch_rows(image, patch)

    def shape(_: int, grid: Grid) -> tuple[int, ...]:
        _, lines, columns = grid or (1, 0, 0)
        return (1, kernel[0], lines * patch, columns * patch)

    return Encoder(graph_of(turned, w, pixels, write), rows, shape, lines_and_columns)


def _axial(theta: float, head_dim: int) -> Rotary:
    """Every other frequency turns by the line, the others by the column."""
    frequencies = _native.inverse_frequencies(theta, head_dim)
    half = len(frequencies) // 2
    return Rotary((*frequencies[0::2], *frequencies[1::2]), axes=(1,) * half + (2,) * half)
