"""SigLIP's encoder. arXiv 2303.15343."""

from __future__ import annotations

from functools import partial
from typing import Any

from sterna.models.vision import vit
from sterna.models.vision.tower import Encoder
from sterna.models.vision.vit import complete as complete

ACTIVATION = "gelu_pytorch_tanh"
ENCODER = True
DEFAULTS: dict[str, Any] = (
    {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12}
    | {"num_attention_heads": 12, "num_channels": 3, "image_size": 224, "patch_size": 16}
    | {"hidden_act": ACTIVATION, "layer_norm_eps": 1e-6}
)
VIT = vit.Vit()
encoder: partial[Encoder] = partial(vit.encoder, VIT)
