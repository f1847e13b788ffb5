"""Voxtral, its text: a Llama. arXiv 2507.13264."""

from __future__ import annotations

from typing import Any

from sterna.models import llama, towers
from sterna.models.config_fields import Fields
from sterna.models.llama import build as build

ARCHITECTURES = ("VoxtralForConditionalGeneration",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 131072, "hidden_size": 3072, "intermediate_size": 8192}
    | {"num_hidden_layers": 30, "num_key_value_heads": 8, "head_dim": 128}
    | {"max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e8}
)
PREFIXES = towers.PREFIXES
SKIPPED = {
    f"{prefix}{name}": "a tower for sound: Sterna runs only the text"
    for prefix in ("", "model.")
    for name in ("audio_tower.", "multi_modal_projector.")
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields."""
    kind = f.mapping("text_config").get("model_type", "llama")
    f.supported("text_config.model_type", kind, "llama")
    return towers.text_fields(f).config
