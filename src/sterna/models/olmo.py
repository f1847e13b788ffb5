"""OLMo, the first generation: Llama's graph with LayerNorms without weights, and in some
models q, k and v within a limit. arXiv 2402.00838."""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import llama
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import LINEARS, GgufArchitecture
from sterna.models.layers import AttentionOptions, Norms
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("OlmoForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS: dict[str, Any] = {
    **COMMON, "vocab_size": 50304, "attention_bias": False, "clip_qkv": None
}  # fmt: skip
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


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    attention = AttentionOptions(clip=c.fields.cap("clip_qkv"))
    norms = Norms(layer=True, weight=False, bias=False)
    return llama.build(g, c, w, norms=norms, attention=attention)
