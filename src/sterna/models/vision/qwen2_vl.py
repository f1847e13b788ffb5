"""The encoder of Qwen2-VL: images of any size, whose patches are rotated by line and column. arXiv
2409.12191.

Patches of a token stand next to each other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
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
from sterna.models.vision.patches import in_squares, lines_and_columns
from sterna.models.vision.tower import Encoder, Grid, Tower, cells, graph_of, vision_config
from sterna.weights.sources import WeightSource

ACTIVATION = "quick_gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"embed_dim": 1280, "mlp_ratio": 4, "num_hidden_layers": 32, "num_attention_heads": 16}
    | {"in_channels": 3, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2}
    | {"hidden_act": ACTIVATION, "rope_theta": 10000.0}
)
ALIASES = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads"}
VIT = vit.Vit(
    tower="visual",
    patches="patch_embed.proj",
    patch_bias=False,
    layers="blocks",
    norms=("norm1", "norm2"),
    attention="attn",
    stored="qkv",
    parts=("q", "k", "v"),
    output="attn.proj",
)
TOWER = VIT.patch_matrix
APART = "qkv_apart"  # a field of ours: q, k and v are three matrices, as in GGUF files
NORM = f"{VIT.tower}.merger.ln_q"
F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
#: The rows of patches -> those of the last norm.
Encode = Callable[[ModelBuilder, Value], None]


def complete(f: Fields) -> dict[str, Any]:
    """Return the fields of the encoder, whose rotations `tower_of` makes."""
    width = f.count("embed_dim")
    return {
        **rotated(f),
        "hidden_size": width,
        "intermediate_size": f.count("intermediate_width", width * f.count("mlp_ratio")),
    }


def rotated(f: Fields) -> dict[str, Any]:
    """Return the fields of an encoder with rotations by line and column."""
    rope = f.mapping("rope_parameters")
    theta = f.having({**f.config, **rope}).number("rope_theta")
    fields = vit.complete(f.having({**f.config, "layer_norm_eps": 1e-6}))
    return {**fields, "rope_theta": theta, "rope_parameters": {}}


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder and its projector."""
    v = vision_config(sys.modules[__name__], c.fields)
    turned = replace(v, attention=tuple(replace(a, rotary=axial(v)) for a in v.attention))

    def encode(m: ModelBuilder, x: Value) -> None:
        x = vit.blocks(m, patches(m, x), of_file(v))
        m.layer_norm(x, NORM)

    return tower_of(c, turned, w, encode)


def of_file(v: TransformerConfig) -> vit.Vit:
    """Return the encoder's names."""
    return replace(VIT, stored="") if v.fields.flag(APART) else VIT


def axial(v: TransformerConfig) -> Rotary:
    """Half of the pairs turn by the line, the others, as fast, by the column."""
    once = _native.inverse_frequencies(v.fields.number("rope_theta"), v.head_dim // 2)
    return Rotary((*once, *once), axes=(1,) * len(once) + (2,) * len(once))


def kernel_of(v: TransformerConfig) -> tuple[int, ...]:
    """Return channels, frames, lines and columns of a patch."""
    f, patch = v.fields, v.fields.count("patch_size")
    return (f.count("in_channels"), f.count("temporal_patch_size"), patch, patch)


def patches(m: ModelBuilder, x: Value) -> Value:
    """Multiply rows of pixels by the patches' matrix."""
    return m.linear(x, TOWER, m.config.hidden_size, kernel=kernel_of(m.config))


def tower_of(
    c: TransformerConfig,
    v: TransformerConfig,
    w: WeightSource,
    encode: Encode,
    windows: Callable[[Grid], Sequence[I64]] | None = None,
) -> Tower:
    """Add an encoder and its projector. windows: the tokens of each window, whose patches the
    encoder has next to each other."""
    edge, d, pixels = v.fields.count("spatial_merge_size"), v.hidden_size, _pixels(v)
    merged_width = d * edge**2

    def order(grid: Grid) -> I64 | slice:
        return np.concatenate(windows(grid)) if windows else slice(None)

    def ordered(rows: npt.NDArray[Any], grid: Grid) -> npt.NDArray[Any]:
        return rows.reshape(-1, edge**2, rows.shape[1])[order(grid)].reshape(rows.shape)

    def project(m: ModelBuilder, x: Value) -> None:
        one, two = (f"{VIT.tower}.merger.mlp.{i}" for i in (0, 2))
        h = m.linear(x, one, merged_width, bias=True)
        h = m.graph.activation(h, "gelu", f"{one}.act")
        m.linear(h, two, c.hidden_size, bias=True)

    def merged(features: F32, grid: Grid) -> F32:
        rows = np.empty((len(features) // edge**2, merged_width), np.float32)
        rows[order(grid)] = features.reshape(rows.shape)
        return rows

    def places(grid: Grid) -> I32:
        assert grid is not None
        return lines_and_columns((1, grid[1] // edge, grid[2] // edge))

    encoder = Encoder(
        graph_of(v, w, pixels, encode),
        ordered,
        lambda _, grid: (cells(grid), pixels),
        lambda grid: ordered(in_squares(lines_and_columns(grid), grid, edge), grid),
        windows=windows and (lambda grid: [len(window) * edge**2 for window in windows(grid)]),
    )
    return Tower(
        encoder,
        graph_of(v, w, merged_width, project),
        c.hidden_size,
        c.fields.count("image_token_id", 151655),
        merged,
        lambda _, grid: cells(grid) // edge**2,
        places=places,
    )


def _pixels(v: TransformerConfig) -> int:
    return int(np.prod(kernel_of(v)))
