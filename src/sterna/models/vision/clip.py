"""CLIP's encoder: a class token, and a norm before the first layer. arXiv 2103.00020."""

from __future__ import annotations

from functools import partial
from typing import Any

from sterna.models.vision import vit
from sterna.models.vision.tower import Encoder
from sterna.models.vision.vit import complete as complete

ACTIVATION = "quick_gelu"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "num_channels": 3, "image_size": 224, "patch_size": 32}
    | {"hidden_act": ACTIVATION, "layer_norm_eps": 1e-5}
)
VIT = vit.Vit(class_token=True, patch_bias=False, first_norm="pre_layrnorm")
encoder: partial[Encoder] = partial(vit.encoder, VIT)
