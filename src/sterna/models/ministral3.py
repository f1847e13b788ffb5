"""Ministral 3, models of text: Llama's graph, queries of late positions scaled up."""

from __future__ import annotations

from typing import Any

from sterna.models import mistral
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.mistral import build as build

ARCHITECTURES = ("Ministral3ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 131072, "intermediate_size": 14336, "num_hidden_layers": 34}
    | {"num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 262144}
    | {"rms_norm_eps": 1e-5, "rope_theta": 1e6, "sliding_window": None}
)
#: rope_parameters, where a file has none.
ROPE: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale_all_dim": 1.0,
    "mscale": 1.0,
    "llama_4_scaling_beta": 0.1,
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the window, which all layers have, and the rotations."""
    return mistral.complete(f) | {"rope_parameters": f.mapping("rope_parameters") or ROPE}
