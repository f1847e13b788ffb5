"""HyperCLOVA X: Granite's graph with norms of each sublayer's output, and a factor of logits.

    x = x + r norm(o(attention(rope(q, k), v)));   x = x + r norm(down(silu(gate) * up))

Each sublayer reads RMSNorm(x).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import granite, llama
from sterna.models.builder import ModelBuilder
from sterna.models.options import AttentionOptions, Factors, Norms

ARCHITECTURES = ("HyperCLOVAXForCausalLM",)
DEFAULTS: dict[str, Any] = granite.DEFAULTS | {
    "attention_multiplier": 128**-0.5,
    "use_post_norm": True,
}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    f = m.config.fields
    added = ("post_norm1", "post_norm2") if f.flag("use_post_norm") else (None, None)
    return llama.build(
        m,
        norms=Norms(post=added),
        attention=AttentionOptions(scale=f.factor("attention_multiplier", m.config.head_dim**-0.5)),
        factors=Factors(
            embedding=f.factor("embedding_multiplier"),
            residual=f.factor("residual_multiplier"),
            logits=f.factor("logits_scaling"),
        ),
    )
