"""MiniCPM, MiniCPM4 and BitCPM4, dense: Llama's graph with factors of embedding, logits and each
sublayer's output. arXiv 2404.06395.

    x = x + r o(attention(rope(q, k), v));   x = x + r down(silu(gate) * up)

Each sublayer reads RMSNorm(x); r = scale_depth / sqrt(layers).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import FACTORS, GgufArchitecture
from sterna.models.options import Factors

ARCHITECTURES = ("MiniCPMForCausalLM",)
DEFAULTS: dict[str, Any] = llama.DEFAULTS | {
    "tie_word_embeddings": True,
    "dim_model_base": 1,
    "scale_depth": 1.0,
    "scale_emb": 1.0,
}
GGUF = {"minicpm": GgufArchitecture(ARCHITECTURES[0], permuted=True, reads=FACTORS)}


def complete(f: Fields) -> dict[str, Any]:
    """Nothing more; UnsupportedModelError for experts and for attention that leaves out blocks."""
    f.supported("num_experts", f.config.get("num_experts") or 0, 0)
    f.supported("sparse_config", f.config.get("sparse_config"), None)
    return {}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    return llama.build(m, factors=factors(m.config))


def factors(c: TransformerConfig) -> Factors:
    """Return the factors of embedding, of each sublayer's output and of logits."""
    return Factors(
        embedding=c.fields.factor("scale_emb"),
        residual=c.fields.factor("scale_depth") / c.n_layers**0.5,
        logits=c.fields.factor("dim_model_base") / c.hidden_size,
    )
