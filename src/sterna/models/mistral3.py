"""Mistral 3 and Ministral 3 with a vision tower (Mistral Small 3.1, 3.2): Llama's graph. That of
Ministral scales queries of late positions up, which its rope_parameters say.

Images go through Pixtral's encoder. A square of patches becomes a row by one matrix, and a token by
two more.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from sterna.graph import Value
from sterna.models import mistral, towers
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.mistral import build as build
from sterna.models.vision import pixtral
from sterna.models.vision.patches import side_by_side
from sterna.models.vision.projectors import two_layers
from sterna.models.vision.tower import Grid, Tower, cells, graph_of, vision_config
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Mistral3ForConditionalGeneration",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768}
    | {"num_hidden_layers": 40, "num_key_value_heads": 8, "head_dim": 128}
    | {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e9}
    | {"sliding_window": None}
)
GGUF = {
    "mistral3": GgufArchitecture(
        "Ministral3ForCausalLM", permuted=True, reads=("attention.temperature_scale",)
    )
}
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED
TOWER, PROJECTOR = pixtral.PATCHES, "multi_modal_projector"


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, and the window, which all layers have."""
    t = towers.text_fields(f)
    return t.config | mistral.complete(t)


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of images and its projector."""
    f = c.fields
    f.supported("projector_hidden_act", f.config.get("projector_hidden_act", "gelu"), "gelu")
    f.supported("vision_feature_layer", f.config.get("vision_feature_layer", -1), -1)
    v, edge = vision_config(pixtral, f), f.count("spatial_merge_size", 2)
    encoder = pixtral.encoder(v, w, v.n_layers, (f"{PROJECTOR}.norm", c.rms_norm_eps))

    def project(m: ModelBuilder, x: Value) -> None:
        x = m.linear(x, f"{PROJECTOR}.patch_merger.merging_layer", v.hidden_size)
        two_layers(m, x, c.hidden_size, f.flag("multimodal_projector_bias"))

    def merged(features: npt.NDArray[np.float32], grid: Grid) -> npt.NDArray[np.float32]:
        """A feature of all patches of a square precedes the next feature."""
        assert grid is not None
        squares = side_by_side(features, grid[1], grid[2], edge)
        apart = squares.reshape(len(squares), edge**2, -1)
        return np.asarray(apart.transpose(0, 2, 1).reshape(len(squares), -1))

    return Tower(
        encoder,
        graph_of(v, w, v.hidden_size * edge**2, project),
        c.hidden_size,
        f.count("image_token_index", 10),
        merged,
        lambda _, grid: cells(grid) // edge**2,
    )
