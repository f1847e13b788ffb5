"""The encoder of Qwen3-VL to Qwen3.6: images of any size. Patches are rotated by line and column,
and have learned positions, which are interpolated to the image's size. arXiv 2511.21631.

Patches of a token stand next to each other. Qwen3-VL also takes the features of some layers on the
way; projected, they are added to the rows of the text's first layers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sterna import _native
from sterna.graph import Rotary, Value
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.vision import vit
from sterna.models.vision.patches import in_squares, interpolated, lines_and_columns
from sterna.models.vision.qwen2_vl import rotated
from sterna.models.vision.tower import Encoder, Grid, Tower, cells, graph_of, vision_config
from sterna.weights.sources import WeightSource

ACTIVATION = "gelu_pytorch_tanh"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}
    | {"num_attention_heads": 16, "in_channels": 3, "patch_size": 16, "temporal_patch_size": 2}
    | {"spatial_merge_size": 2, "num_position_embeddings": 2304, "hidden_act": ACTIVATION}
    | {"rope_theta": 10000.0}
)
ALIASES = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads"}
VIT = vit.Vit(
    tower="visual",
    patches="patch_embed.proj",
    layers="blocks",
    norms=("norm1", "norm2"),
    attention="attn",
    stored="qkv",
    output="attn.proj",
    mlp=("mlp.linear_fc1", "mlp.linear_fc2"),
)
TOWER = VIT.patch_matrix
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


complete = rotated  # its rotations are made by `tower`


def tower(c: TransformerConfig, w: WeightSource, deep: Sequence[int] = ()) -> Tower:
    """Add the encoder and its projectors. deep: layers whose features the text takes, too."""
    v = vision_config(sys.modules[__name__], c.fields)
    f, d = v.fields, v.hidden_size
    if max(deep, default=0) >= v.n_layers:
        f.fail("deepstack_visual_indexes", f"layers in 0..{v.n_layers - 1}", list(deep))
    edge, side = f.count("spatial_merge_size"), int(f.count("num_position_embeddings") ** 0.5)
    frames, patch = f.count("temporal_patch_size"), f.count("patch_size")
    kernel = (f.count("in_channels"), frames, patch, patch)
    table = w.vector(f"{VIT.tower}.pos_embed.weight", side * side, d)
    merged_width, parts = d * edge**2, 1 + len(deep)
    turned = replace(v, attention=tuple(replace(a, rotary=_axial(f, v)) for a in v.attention))

    def encode(m: ModelBuilder, x: Value) -> None:
        x = vit.embed(m, x, VIT, kernel)
        seen: list[Value] = []
        x = vit.blocks(m, x, VIT, seen=seen)
        x = m.layer_norm(x, f"{VIT.tower}.merger.norm")
        m.graph.concatenate([x, *(seen[i] for i in deep)])

    def project(m: ModelBuilder, x: Value) -> None:
        made = [_project(m, x, f"{VIT.tower}.merger", c.hidden_size, 0, merged_width)]
        for i in range(len(deep)):
            name = f"{VIT.tower}.deepstack_merger_list.{i}"
            begin = (i + 1) * merged_width
            made.append(_project(m, x, name, c.hidden_size, begin, merged_width, norm=True))
        m.graph.concatenate(made)

    def rows(pixels: F32, grid: Grid) -> F32:
        assert grid is not None
        positions = in_squares(interpolated(table, side, grid[1], grid[2]), grid, edge)
        return np.concatenate([pixels, positions], axis=1)

    def merged(features: F32, grid: Grid) -> F32:
        apart = features.reshape(-1, edge**2, parts, d)
        return np.asarray(apart.transpose(0, 2, 1, 3).reshape(-1, parts * merged_width))

    def places(grid: Grid) -> I32:
        assert grid is not None
        return lines_and_columns((1, grid[1] // edge, grid[2] // edge))

    pixels = int(np.prod(kernel))
    encoder = Encoder(
        graph_of(turned, w, pixels + d, encode),
        rows,
        lambda _, grid: (cells(grid), pixels),
        lambda grid: in_squares(lines_and_columns(grid), grid, edge),
        (table,),
    )
    return Tower(
        encoder,
        graph_of(v, w, parts * merged_width, project),
        parts * c.hidden_size,
        c.fields.count("image_token_id", 151655),
        merged,
        lambda _, grid: cells(grid) // edge**2,
        places=places,
    )


def _axial(f: Fields, v: TransformerConfig) -> Rotary:
    """Half of the pairs turn by the line, the others, as fast, by the column."""
    once = _native.inverse_frequencies(f.number("rope_theta"), v.head_dim // 2)
    return Rotary((*once, *once), axes=(1,) * len(once) + (2,) * len(once))


def _project(
    m: ModelBuilder, x: Value, name: str, width: int, begin: int, columns: int, norm: bool = False
) -> Value:
    """fc2(gelu(fc1(x))) of some of the columns, with a norm before it if there is one."""
    h = m.graph.columns(x, columns, name, begin)
    h = m.layer_norm(h, f"{name}.norm") if norm else h
    one, two = (f"{name}.linear_fc{i}" for i in (1, 2))
    h = m.linear(h, one, columns, bias=True)
    h = m.graph.activation(h, "gelu", f"{one}.act")
    return m.linear(h, two, width, bias=True)
