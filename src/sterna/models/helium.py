"""Helium: Llama's graph, adjacent values rotated together."""

from __future__ import annotations

from typing import Any

from sterna.models import llama, seed_oss
from sterna.models.config_fields import Fields
from sterna.models.seed_oss import build as build

ARCHITECTURES = ("HeliumForCausalLM",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"vocab_size": 48000, "hidden_size": 2560, "intermediate_size": 7040, "num_hidden_layers": 24}
    | {"num_attention_heads": 20, "num_key_value_heads": 20, "head_dim": 128}
    | {"max_position_embeddings": 4096, "rms_norm_eps": 1e-8, "rope_theta": 100000.0}
)


def complete(f: Fields) -> dict[str, Any]:
    """Return which layers have biases, and the kind of rotations."""
    bias = f.flag("attention_bias")
    return {seed_oss.QKV_BIAS: bias, "attention_bias": False, "rope_interleaved": True}
