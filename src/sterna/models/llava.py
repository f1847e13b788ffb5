"""LLaVA 1.5, and Pixtral 12B in its form: a Llama, a Mistral or a Qwen2 after an encoder whose
patches are tokens. arXiv 2310.03744, 2410.07073.

rows = linear_2(gelu(linear_1(patches)))
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from sterna.graph import Value
from sterna.models import llama, qwen2, towers
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.llama import build as build
from sterna.models.vision import clip, pixtral, siglip
from sterna.models.vision.projectors import two_layers
from sterna.models.vision.tower import Grid, Tower, cells, graph_of, vision_config
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("LlavaForConditionalGeneration",)
DEFAULTS: dict[str, Any] = llama.DEFAULTS
#: Models of texts by their model_type.
TEXTS: dict[str, ModuleType] = {"llama": llama, "mistral": llama, "qwen2": qwen2}
ENCODERS: dict[str, ModuleType] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "pixtral": pixtral,
}
TOWER = (clip.VIT.patch_matrix, pixtral.PATCHES)
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields."""
    text = f.mapping("text_config")
    kind = text.get("model_type", "llama")
    if not isinstance(kind, str) or kind not in TEXTS:
        f.supported("text_config.model_type", kind, "llama")
    if TEXTS[kind] is qwen2:
        f = f.having({**f.config, "text_config": {**qwen2.DEFAULTS, **text}})
        t = towers.text_fields(f)
        return t.config | qwen2.complete(t)
    t = towers.text_fields(f)
    t.supported("sliding_window", t.config.get("sliding_window"), None)
    return t.config


def text_module(c: TransformerConfig) -> ModuleType:
    """Return the module of the text's model."""
    return TEXTS[c.fields.mapping("text_config").get("model_type", "llama")]


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of images and its projector."""
    f = c.fields
    kind = f.mapping("vision_config").get("model_type", "clip_vision_model")
    if kind not in ENCODERS:
        f.supported("vision_config.model_type", kind, "clip_vision_model")
    f.supported("projector_hidden_act", f.config.get("projector_hidden_act", "gelu"), "gelu")
    v, layer = vision_config(ENCODERS[kind], f), f.config.get("vision_feature_layer", -2)
    if type(layer) is not int or not -v.n_layers <= layer < 0:
        f.supported("vision_feature_layer", layer, -2)
    chosen = f.config.get("vision_feature_select_strategy", "default")
    if chosen not in ("default", "full"):
        f.supported("vision_feature_select_strategy", chosen, "default")
    encoder = ENCODERS[kind].encoder(v, w, v.n_layers + 1 + layer)
    bias = f.config.get("multimodal_projector_bias") is not False

    def project(m: ModelBuilder, x: Value) -> None:
        two_layers(m, x, c.hidden_size, bias)

    first = int(chosen == "default")  # the class token, which stands before the patches

    def tokens(n: int, grid: Grid) -> int:
        return cells(grid) if grid is not None else n * (encoder.n_rows - first)

    return Tower(
        encoder,
        graph_of(v, w, v.hidden_size, project),
        c.hidden_size,
        f.count("image_token_index", 32000, least=0),
        lambda features, _: features[first:],
        tokens,
    )
