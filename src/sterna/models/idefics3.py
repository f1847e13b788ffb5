"""Idefics 3, SmolVLM and SmolVLM 2: a Llama behind a SigLIP of tiles. arXiv 2408.12637, 2504.05299.

A square of patches, side by side, becomes a token by one matrix.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama, towers
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.llama import build as build
from sterna.models.vision import siglip, vit
from sterna.models.vision.patches import side_by_side
from sterna.models.vision.tower import Tower, graph_of, vision_config
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")
DEFAULTS: dict[str, Any] = llama.DEFAULTS | {"rms_norm_eps": 1e-5}
TOWER, PROJECTION = siglip.VIT.patch_matrix, "connector.modality_projection.proj"
PREFIXES = {
    "model.text_model.": "model.",
    "model.vision_model.": "vision_tower.",
    "model.connector.": "connector.",
}
SKIPPED = dict.fromkeys([*PREFIXES][1:], "a vision tower: Sterna runs only the text")


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields."""
    f.supported(
        "text_config.model_type", f.mapping("text_config").get("model_type", "llama"), "llama"
    )
    return towers.text_fields(f).config


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of tiles and its projector."""
    v, edge = vision_config(siglip, c.fields), c.fields.count("scale_factor", 2)
    side = vit.side_of(v)
    # transformers finds a patch's position by its place as a fraction of the tile. In sizes that
    # are published it is the patch's own.
    encoder = siglip.encoder(v, w)

    def project(m: ModelBuilder, x: Value) -> None:
        m.linear(x, PROJECTION, c.hidden_size)

    return Tower(
        encoder,
        graph_of(v, w, v.hidden_size * edge**2, project),
        c.hidden_size,
        c.fields.count("image_token_id", 128257),
        lambda features, _: side_by_side(features, side, side, edge),
        lambda n, _: n * (side // edge) ** 2,
    )
