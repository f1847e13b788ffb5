"""The encoder of Qwen2.5-VL: Llama's layers on images of any size, rotated by line and column. Most
layers attend within windows of the image. arXiv 2502.13923.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.graph import Value
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.options import AttentionOptions
from sterna.models.vision import qwen2_vl
from sterna.models.vision.tower import Grid, Tower, vision_config
from sterna.weights.sources import WeightSource

ENCODER = True
DEFAULTS: dict[str, Any] = (
    without(qwen2_vl.DEFAULTS, "embed_dim", "mlp_ratio")
    | {"hidden_size": 3584, "intermediate_size": 3420, "hidden_act": "silu", "window_size": 112}
    | {"fullatt_block_indexes": [7, 15, 23, 31]}
)
ALIASES = qwen2_vl.ALIASES


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of the encoder, whose rotations `tower` makes."""
    return {**qwen2_vl.rotated(f), "mlp_bias": True}


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder and its projector."""
    v = vision_config(sys.modules[__name__], c.fields)
    f, rotary, whole = v.fields, qwen2_vl.axial(v), _whole(v)
    edge = f.count("window_size") // f.count("spatial_merge_size") // f.count("patch_size")
    if not edge:
        f.fail("window_size", "a token's pixels at least", f.config["window_size"])
    attention = tuple(
        replace(a, rotary=rotary, windowed=i not in whole) for i, a in enumerate(v.attention)
    )
    turned, vit = replace(v, attention=attention), qwen2_vl.of_file(v)
    options = AttentionOptions(bias=True, stored=vit.stored, names=vit.parts)

    def encode(m: ModelBuilder, x: Value) -> None:
        x = qwen2_vl.patches(m, x)
        for i in range(v.n_layers):
            p = f"{vit.tower}.{vit.layers}.{i}"
            h = m.norm(x, f"{p}.{vit.norms[0]}")
            h = m.attention(h, i, f"{p}.{vit.attention}", options)
            x = m.output(h, x, f"{p}.{vit.output}", bias=True)
            h = m.norm(x, f"{p}.{vit.norms[1]}")
            x = m.feed_forward(h, x, f"{p}.mlp")
        m.norm(x, qwen2_vl.NORM)

    def windows(grid: Grid) -> Sequence[npt.NDArray[np.int64]]:
        assert grid is not None
        merge = f.count("spatial_merge_size")
        height, width = grid[1] // merge, grid[2] // merge
        tokens = np.arange(height * width).reshape(height, width)
        corners = [(y, x) for y in range(0, height, edge) for x in range(0, width, edge)]
        return [tokens[y : y + edge, x : x + edge].reshape(-1) for y, x in corners]

    return qwen2_vl.tower_of(c, turned, w, encode, windows)


def _whole(v: TransformerConfig) -> frozenset[int]:
    """Return the layers that see the whole image."""
    indexes = v.fields.config["fullatt_block_indexes"]
    if not isinstance(indexes, list) or not all(type(i) is int and i >= 0 for i in indexes):
        v.fields.fail("fullatt_block_indexes", "a list of layers", indexes)
    return frozenset(indexes)
