"""Qwen2-VL and Qwen2.5-VL, their text: Qwen2's graph."""

from __future__ import annotations

from typing import Any

from sterna.models import qwen2, towers
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.qwen2 import KV_DTYPE as KV_DTYPE
from sterna.models.qwen2 import build as build

ARCHITECTURES = ("Qwen2_5_VLForConditionalGeneration", "Qwen2VLForConditionalGeneration")
ACTIVATION = qwen2.ACTIVATION
TERNARY = qwen2.TERNARY
DEFAULTS: dict[str, Any] = {
    **qwen2.DEFAULTS, "vocab_size": 152064, "hidden_size": 8192, "intermediate_size": 29568,
    "num_hidden_layers": 80, "num_attention_heads": 64, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5, "rope_theta": 1e6, "max_window_layers": 80,
}  # fmt: skip
del DEFAULTS["tie_word_embeddings"]  # which is outside of the text's fields
GGUF = {"qwen2vl": GgufArchitecture(ARCHITECTURES[0])}
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, and which layers have a window."""
    t = towers.text_fields(f)
    head_dim = t.count("hidden_size") // t.count("num_attention_heads")
    rope = towers.text_rotations(t, t.mapping("rope_parameters"), head_dim)
    return {**t.config, "rope_parameters": rope, **qwen2.complete(t)}
