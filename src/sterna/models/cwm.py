"""Code World Model: Llama's graph, three layers within a window for each without.
arXiv 2510.02387.
"""

from __future__ import annotations

from typing import Any

from sterna.models.config import FULL, SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.llama import build as build

ARCHITECTURES = ("CwmForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 128256, "hidden_size": 6144, "intermediate_size": 21504}
    | {"num_hidden_layers": 64, "num_attention_heads": 48, "num_key_value_heads": 8}
    | {"head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 1e6}
    | {"mlp_bias": False, "sliding_window": 8192}
)
#: rope_parameters, where a file has none.
ROPE: dict[str, Any] = {
    "rope_type": "llama3",
    "rope_theta": 1e6,
    "factor": 16.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def complete(f: Fields) -> dict[str, Any]:
    """Return which layers have a window, and the rotations."""
    types = f.config.get("layer_types")
    types = types or [SLIDING if i % 4 else FULL for i in range(f.n_layers)]
    return {"layer_types": types, "rope_parameters": f.mapping("rope_parameters") or ROPE}
