"""ERNIE 4.5 without experts (0.3B): Llama's graph, adjacent values rotated together."""

from __future__ import annotations

from typing import Any

from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.llama import build as build

ARCHITECTURES = ("Ernie4_5ForCausalLM",)
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 103424, "hidden_size": 1024, "intermediate_size": 3072}
    | {"num_hidden_layers": 18, "num_attention_heads": 16, "num_key_value_heads": 2}
    | {"head_dim": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5}
    | {"rope_theta": 500000.0, "tie_word_embeddings": True, "use_bias": False}
)
GGUF = {"ernie4_5": GgufArchitecture(ARCHITECTURES[0], renamed={"attention_bias": "use_bias"})}


def complete(f: Fields) -> dict[str, Any]:
    """Return the biases, which all linear layers of a layer have, and the kind of rotations."""
    bias = f.flag("use_bias")
    return {"attention_bias": bias, "mlp_bias": bias, "rope_interleaved": True}
