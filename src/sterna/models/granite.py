"""Granite: Llama's graph with multipliers of embedding, scores, logits and each half's result.

    x = x + r o(attention(rope(q, k), v));   x = x + r down(silu(gate) * up)

Each half reads RMSNorm(x).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import llama
from sterna.models.config import TransformerConfig
from sterna.models.gguf_architecture import FACTORS, GgufArchitecture
from sterna.models.layers import AttentionOptions, Factors
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("GraniteForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **llama.DEFAULTS, "attention_multiplier": 1.0, "embedding_multiplier": 1.0,
    "logits_scaling": 1.0, "residual_multiplier": 1.0,
}  # fmt: skip
GGUF = {
    "granite": GgufArchitecture(
        ARCHITECTURES[0], permuted=True, reads=(*FACTORS, "attention.scale")
    )
}


def build(
    g: GraphBuilder, c: TransformerConfig, w: WeightSource, ffn: llama.FeedForward | None = None
) -> Value:
    """Write the model's layers into `g`; returns the logits. ffn: as in `llama.build`."""
    return llama.build(
        g,
        c,
        w,
        attention=AttentionOptions(scale=c.fields.factor("attention_multiplier")),
        factors=Factors(
            embedding=c.fields.factor("embedding_multiplier"),
            residual=c.fields.factor("residual_multiplier"),
            logits=1 / c.fields.factor("logits_scaling"),
        ),
        ffn=ffn,
    )
