"""OLMo, the first generation: Llama's graph with LayerNorms without weights, and in some
models q, k and v within a limit. arXiv 2402.00838."""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, GgufArchitecture
from sterna.models.options import AttentionOptions, Norms

ARCHITECTURES = ("OlmoForCausalLM",)
DEFAULTS: dict[str, Any] = COMMON | {"vocab_size": 50304, "attention_bias": False, "clip_qkv": None}
GGUF = {
    "olmo": GgufArchitecture(
        ARCHITECTURES[0],
        modules=LINEARS,
        permuted=True,
        layer_norm=True,
        reads=("attention.clamp_kqv",),
    )
}


def complete(f: Fields) -> dict[str, Any]:
    """Return the epsilon of norms, which no field has."""
    return {"rms_norm_eps": 1e-5}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    attention = AttentionOptions(clip=m.config.fields.cap("clip_qkv"))
    norms = Norms(layer_norm=True, weight=False, bias=False)
    return llama.build(m, norms=norms, attention=attention)
