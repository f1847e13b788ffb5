"""Mistral 3 and Ministral 3 with a vision tower (Mistral Small 3.1, 3.2), their text: Llama's
graph. Ministral's scales queries of late positions up, which its rope_parameters say.
"""

from __future__ import annotations

from typing import Any

from sterna.models import mistral, towers
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.mistral import build as build

ARCHITECTURES = ("Mistral3ForConditionalGeneration",)
ACTIVATION = mistral.ACTIVATION
TERNARY = mistral.TERNARY
DEFAULTS: dict[str, Any] = {
    **COMMON, "vocab_size": 131072, "hidden_size": 5120, "intermediate_size": 32768,
    "num_hidden_layers": 40, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e9,
    "sliding_window": None,
}  # fmt: skip
GGUF = {
    "mistral3": GgufArchitecture(
        "Ministral3ForCausalLM", permuted=True, reads=("attention.temperature_scale",)
    )
}
PREFIXES, SKIPPED = towers.PREFIXES, towers.SKIPPED


def complete(f: Fields) -> dict[str, Any]:
    """Return the text's fields, and the window, which all layers have."""
    t = towers.text_fields(f)
    return t.config | mistral.complete(t)
