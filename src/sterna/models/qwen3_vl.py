"""Qwen3-VL, its text: Qwen3's graph."""

from __future__ import annotations

from typing import Any

from sterna.models import qwen3, towers
from sterna.models.config import MAX_HEAD_DIM
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, QK_NORMS, READS, GgufArchitecture
from sterna.models.qwen3 import build as build

ARCHITECTURES = ("Qwen3VLForConditionalGeneration",)
ACTIVATION = qwen3.ACTIVATION
TERNARY = qwen3.TERNARY
DEFAULTS: dict[str, Any] = {
    **COMMON, "vocab_size": 151936, "intermediate_size": 22016, "num_key_value_heads": 32,
    "head_dim": 128, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6,
    "rope_theta": 500000.0, "attention_bias": False,
}  # fmt: skip
del DEFAULTS["tie_word_embeddings"]  # which stands outside of the text's fields
GGUF = {"qwen3vl": GgufArchitecture(ARCHITECTURES[0], modules={**LINEARS, **READS, **QK_NORMS})}
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields."""
    t = towers.text_fields(f)
    head_dim = t.count("head_dim", most=MAX_HEAD_DIM)
    rope = towers.text_rotations(t, t.mapping("rope_parameters"), head_dim)
    return {**t.config, "rope_parameters": rope}
