"""SigLIP's encoder of images of one size, with a learned position for each patch.
arXiv 2303.15343.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.graph import Graph, GraphBuilder, Value
from sterna.models import layers
from sterna.models.config import TransformerConfig
from sterna.models.vision import vit
from sterna.models.vision.patches import patch_rows
from sterna.models.vision.tower import Grid, Rows, graph_of
from sterna.models.vision.vit import complete as complete
from sterna.weights.sources import WeightSource

__all__ = ["ACTIVATION", "DEFAULTS", "ENCODER", "PATCHES", "complete", "encoder", "side_of"]

ACTIVATION = "gelu_pytorch_tanh"
ENCODER = True
DEFAULTS: dict[str, Any] = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
    "num_attention_heads": 12, "num_channels": 3, "image_size": 224, "patch_size": 16,
    "hidden_act": ACTIVATION, "layer_norm_eps": 1e-6,
}  # fmt: skip
NAMES = vit.Names()
PATCHES = NAMES.patch_matrix
F32 = npt.NDArray[np.float32]


def side_of(c: TransformerConfig) -> int:
    """Return the patches of an image's edge."""
    return c.fields.count("image_size") // c.fields.count("patch_size")


def encoder(c: TransformerConfig, w: WeightSource) -> tuple[Graph, Rows]:
    """Write the encoder; also return what makes the rows that it reads."""
    d, patch = c.hidden_size, c.fields.count("patch_size")
    table = w.vector(f"{NAMES.tower}.embeddings.position_embedding.weight", side_of(c) ** 2, d)

    def write(g: GraphBuilder, x: Value) -> None:
        x = vit.blocks(g, c, w, vit.embed(g, c, w, x, NAMES), NAMES)
        layers.layer_norm(g, c, w, x, f"{NAMES.tower}.post_layernorm")

    def rows(pixels: F32, grid: Grid) -> F32:
        return np.concatenate([patch_rows(pixels, patch), table], axis=1)

    return graph_of(c, c.fields.count("num_channels") * patch**2 + d, write), rows
