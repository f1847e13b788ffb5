"""Granite: Llama's graph with multipliers of embedding, scores, logits and each sublayer's output.

    x = x + r o(attention(rope(q, k), v));   x = x + r down(silu(gate) * up)

Each sublayer reads RMSNorm(x).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import FeedForward, ModelBuilder
from sterna.models.gguf_architecture import FACTORS, GgufArchitecture
from sterna.models.options import AttentionOptions, Factors

ARCHITECTURES = ("GraniteForCausalLM",)
DEFAULTS: dict[str, Any] = (
    llama.DEFAULTS
    | {"attention_multiplier": 1.0, "embedding_multiplier": 1.0, "logits_scaling": 1.0}
    | {"residual_multiplier": 1.0}
)
GGUF = {
    "granite": GgufArchitecture(
        ARCHITECTURES[0], permuted=True, reads=(*FACTORS, "attention.scale")
    )
}


def build(m: ModelBuilder, ffn: FeedForward | None = None) -> Value:
    """Add the model's layers; return the logits. ffn: as in `llama.build`."""
    c = m.config
    return llama.build(
        m,
        attention=AttentionOptions(scale=c.fields.factor("attention_multiplier")),
        factors=Factors(
            embedding=c.fields.factor("embedding_multiplier"),
            residual=c.fields.factor("residual_multiplier"),
            logits=1 / c.fields.factor("logits_scaling"),
        ),
        ffn=ffn,
    )
