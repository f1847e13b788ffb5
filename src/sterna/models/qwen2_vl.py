"""Qwen2-VL and Qwen2.5-VL: Qwen2's graph. Rotations of a text that has images turn by time, line
and column."""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import qwen2, towers
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import without
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.qwen2 import KV_DTYPE as KV_DTYPE
from sterna.models.vision import qwen2_5_vl, qwen2_vl
from sterna.models.vision.tower import Tower
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration")
DEFAULTS: dict[str, Any] = (
    without(qwen2.DEFAULTS, "tie_word_embeddings")
    | {"vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568}
    | {"num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8}
    | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80}
)
GGUF = {"qwen2vl": GgufArchitecture(ARCHITECTURES[0])}
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED
TOWER = qwen2_vl.TOWER
SECTIONS = [16, 24, 24]  # of the rotations, for time, lines and columns of an image


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, and which layers have a window."""
    t = towers.text_fields(f)
    head_dim = t.count("hidden_size") // t.count("num_attention_heads")
    rope = t.mapping("rope_parameters")
    return {
        **t.config,
        "rope_parameters": towers.text_rotations(t, rope, head_dim),
        towers.AXES: towers.axes_in_turn(rope, SECTIONS, head_dim // 2),
        **qwen2.complete(t),
    }


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return qwen2.build(towers.with_axes(m))


def tower(c: TransformerConfig, w: WeightSource) -> Tower:
    """Add the encoder of images and its projector."""
    if c.architecture == ARCHITECTURES[0]:
        return qwen2_5_vl.tower(c, w)
    return qwen2_vl.tower(c, w)
