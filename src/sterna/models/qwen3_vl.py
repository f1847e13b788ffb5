"""Qwen3-VL: Qwen3's graph. Rotations of a text that has images turn by time, line and column, and
features of several layers of the encoder are added to the rows of the first layers' results."""

from __future__ import annotations

from typing import Any

from sterna.models import towers
from sterna.models.config import MAX_HEAD_DIM, TransformerConfig
from sterna.models.config_defaults import COMMON, without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, QK_NORMS, READS, GgufArchitecture
from sterna.models.qwen3 import build as build
from sterna.models.vision import qwen3_vl
from sterna.models.vision.tower import Tower
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Qwen3VLForConditionalGeneration",)
DEFAULTS: dict[str, Any] = (
    without(COMMON, "tie_word_embeddings")
    | {"vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32, "head_dim": 128}
    | {"max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 500000.0}
    | {"attention_bias": False}
)
GGUF = {"qwen3vl": GgufArchitecture(ARCHITECTURES[0], modules={**LINEARS, **READS, **QK_NORMS})}
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED
TOWER = qwen3_vl.TOWER
SECTIONS = [24, 20, 20]  # of the rotations, for time, lines and columns of an image


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields."""
    t = towers.text_fields(f)
    head_dim = t.count("head_dim", most=MAX_HEAD_DIM)
    rope = t.mapping("rope_parameters")
    rotations = towers.text_rotations(t, rope, head_dim)
    return {
        **t.config,
        "rope_parameters": rotations,
        towers.AXES: towers.axes_of(t, rope, SECTIONS, head_dim // 2),
        towers.DEEP: _deep(f),
    }


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of images and its projectors."""
    return qwen3_vl.tower(c, w, c.fields.config[towers.DEEP])


def _deep(f: Fields) -> list[int]:
    """Return the encoder's layers whose features the text's first layers take."""
    vision = f.having(f.mapping("vision_config"))
    layers = vision.config.get("deepstack_visual_indexes", [8, 16, 24])
    if not isinstance(layers, list) or not all(type(i) is int and i >= 0 for i in layers):
        vision.fail("deepstack_visual_indexes", "a list of layers", layers)
    return list(layers)
