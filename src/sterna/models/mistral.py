"""Mistral: Llama's graph, within a window of attention in all layers. arXiv 2310.06825.

A file without the field of a window has one of 4,096 positions; null means none.
"""

from __future__ import annotations

from typing import Any

from sterna.models.config import SLIDING
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.llama import build as build

ARCHITECTURES = ("MistralForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"rms_norm_eps": 1e-6, "intermediate_size": 14336, "num_key_value_heads": 8}
    | {"max_position_embeddings": 131072, "sliding_window": 4096}
)


def complete(f: Fields) -> dict[str, Any]:
    """Return the window, which all layers have."""
    if f.config.get("layer_types") is not None or f.config.get("sliding_window") is None:
        return {}
    return {"layer_types": [SLIDING] * f.n_layers}
