"""Gemma, the first generation: Llama's graph, norms that multiply by 1 + their weight, and an
embedding that is scaled by the root of its width. arXiv 2403.08295.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import GraphBuilder, Value
from sterna.models import gemma2, layers, llama
from sterna.models.config import TransformerConfig
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("GemmaForCausalLM",)
ACTIVATION = gemma2.ACTIVATION
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS: dict[str, Any] = {
    **COMMON, "vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576,
    "num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16,
    "head_dim": 256, "hidden_act": ACTIVATION, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False,
}  # fmt: skip
GGUF = {"gemma": GgufArchitecture(ARCHITECTURES[0], ACTIVATION, sums=True)}


def build(g: GraphBuilder, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    factors = layers.Factors(embedding=c.hidden_size**0.5)
    return llama.build(g, c, w, norms=layers.Norms(plus_one=True), factors=factors)
