"""MiniCPM, MiniCPM4 and BitCPM4, dense: Llama's graph with factors of embedding, logits and each
half's result. arXiv 2404.06395.

    x = x + r o(attention(rope(q, k), v));   x = x + r down(silu(gate) * up)

Each half reads RMSNorm(x); r = scale_depth / sqrt(layers).
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import llama
from sterna.models.config import TransformerConfig
from sterna.models.config_fields import Fields
from sterna.models.gguf_architecture import FACTORS, GgufArchitecture
from sterna.models.layers import Factors
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("MiniCPMForCausalLM",)
ACTIVATION = llama.ACTIVATION
TERNARY = llama.TERNARY
DEFAULTS: dict[str, Any] = {
    **llama.DEFAULTS, "tie_word_embeddings": True, "dim_model_base": 1, "scale_depth": 1.0,
    "scale_emb": 1.0,
}  # fmt: skip
GGUF = {"minicpm": GgufArchitecture(ARCHITECTURES[0], permuted=True, reads=FACTORS)}


def complete(f: Fields) -> dict[str, Any]:
    """Nothing more; UnsupportedModelError for experts and for attention that leaves out blocks."""
    f.supported("num_experts", f.config.get("num_experts") or 0, 0)
    f.supported("sparse_config", f.config.get("sparse_config"), None)
    return {}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return llama.build(g, c, w, factors=factors(c))


def factors(c: TransformerConfig) -> Factors:
    """Return the factors of embedding, of each half's result and of logits."""
    return Factors(
        embedding=c.fields.factor("scale_emb"),
        residual=c.fields.factor("scale_depth") / c.n_layers**0.5,
        logits=c.fields.factor("dim_model_base") / c.hidden_size,
    )
