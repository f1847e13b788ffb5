"""Gemma, the first generation: Llama's graph, norms that multiply by 1 + their weight, and an
embedding that is scaled by the root of its width. arXiv 2403.08295.
"""

from __future__ import annotations

from typing import Any

from sterna.graph import Value
from sterna.models import llama
from sterna.models.builder import ModelBuilder
from sterna.models.config_defaults import COMMON
from sterna.models.gguf_architecture import GgufArchitecture
from sterna.models.options import Factors, Norms

ARCHITECTURES = ("GemmaForCausalLM",)
ACTIVATION = "gelu_pytorch_tanh"
DEFAULTS: dict[str, Any] = (
    COMMON
    | {"vocab_size": 256000, "hidden_size": 3072, "intermediate_size": 24576}
    | {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 16}
    | {"head_dim": 256, "hidden_act": ACTIVATION, "max_position_embeddings": 8192}
    | {"rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False}
)
GGUF = {"gemma": GgufArchitecture(ARCHITECTURES[0], ACTIVATION, sums=True)}


def build(m: ModelBuilder) -> Value:
    """Add the model's layers; return the logits."""
    factors = Factors(embedding=m.config.hidden_size**0.5)
    return llama.build(m, norms=Norms(plus_one=True), factors=factors)
