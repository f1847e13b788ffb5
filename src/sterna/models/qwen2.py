"""Qwen2 and Qwen2.5: Llama's graph with biases of q, k and v. arXiv 2407.10671.

x = x + o(attention(rope(q + b_q, k + b_k), v + b_v));   x = x + down(silu(gate) * up)
"""

from __future__ import annotations

from sterna.graph import Graph, Value
from sterna.models import llama
from sterna.models.config import TransformerConfig
from sterna.weights.sources import WeightSource

ARCHITECTURES = ("Qwen2ForCausalLM",)
ACTIVATION = "silu"
TERNARY = False  # float tensors of linear layers are the weights themselves
DEFAULTS = {"use_sliding_window": False}
# Keys may have biases of hundreds beside values of one: 13 bits for all of a vector are too few.
KV_DTYPE = "f16"


def build(g: Graph, c: TransformerConfig, w: WeightSource) -> Value:
    """Write the model's layers into `g`; returns the logits."""
    return llama.build(g, c, w, qkv_bias=True)
